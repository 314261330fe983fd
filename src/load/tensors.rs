//! A loaded selection.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::load::report::LoadReport;
use crate::tensor::Tensor;

/// All tensors of a load, complete, in the order of the checkpoint.
#[derive(Debug)]
pub struct Tensors {
    tensors: Vec<Tensor>,
    hasher: DefaultHashBuilder,
    by_name: HashTable<u32>,
    report: LoadReport,
}

impl Tensors {
    pub(super) fn new(tensors: Vec<Tensor>, report: LoadReport) -> Self {
        let hasher = DefaultHashBuilder::default();
        let mut by_name = HashTable::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            let hash = |&index: &u32| hasher.hash_one(tensors[index as usize].name());
            by_name.insert_unique(hasher.hash_one(tensor.name()), index as u32, hash);
        }
        Self {
            tensors,
            hasher,
            by_name,
            report,
        }
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let hash = self.hasher.hash_one(name);
        let index = self
            .by_name
            .find(hash, |&index| self.tensors[index as usize].name() == name)?;
        Some(&self.tensors[*index as usize])
    }

    /// All of them, in the order of the checkpoint: by file, then by offset.
    pub fn iter(&self) -> std::slice::Iter<'_, Tensor> {
        self.tensors.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the selection was of no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Their bytes together.
    pub fn bytes(&self) -> u64 {
        self.report.bytes
    }

    /// What the load did.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = &'a Tensor;
    type IntoIter = std::slice::Iter<'a, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Tensors {
    type Item = Tensor;
    type IntoIter = std::vec::IntoIter<Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}
