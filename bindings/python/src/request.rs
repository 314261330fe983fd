//! What a load was asked for, from arguments to a loader.

use std::collections::HashMap;

use pyo3::prelude::*;
use tensora::plan::Steps;
use tensora::{BackendKind, CancelToken, Loader, Selection, Settings, Slice};

use crate::errors::{checked, refused};
use crate::wait::Cancel;

/// First row, how many, how far apart; `None` for all of the dimension.
type Dim = Option<(u64, u64, u64)>;

/// Arguments that every load has, with the names that Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Request {
    backend: String,
    names: Option<Vec<String>>,
    slices: HashMap<String, Vec<Dim>>,
    workers: Option<usize>,
    memory_budget: Option<u64>,
    align: Option<u64>,
    cancel: Option<Py<Cancel>>,
}

impl Request {
    /// Which tensors, and which parts of them.
    pub fn selection(&self, py: Python<'_>) -> PyResult<Selection> {
        let mut selection = match &self.names {
            None => Selection::all(),
            Some(names) => Selection::names(names),
        };
        for (name, dims) in &self.slices {
            let dims = dims
                .iter()
                .map(|dim| dim.map(|(start, count, step)| Steps { start, count, step }));
            let slice = Slice::Steps(dims.collect());
            selection = checked(py, selection.with_slice(name, slice))?;
        }
        Ok(selection)
    }

    /// A loader of the checkpoint that does what was asked for, and the token that ends it.
    pub fn loader(
        &self,
        py: Python<'_>,
        checkpoint: &tensora::Checkpoint,
    ) -> PyResult<(Loader, CancelToken)> {
        let token = self
            .cancel
            .as_ref()
            .map_or_else(CancelToken::default, |cancel| cancel.get().0.clone());
        let settings = Settings {
            backend: backend(&self.backend)?,
            workers: self.workers,
            budget: self.memory_budget,
            align: self.align,
            ..Settings::default()
        };
        let loader = checkpoint
            .loader()
            .select(self.selection(py)?)
            .settings(settings)
            .cancel_with(token.clone());
        Ok((loader, token))
    }
}

/// A backend by one of its spellings.
pub fn backend(name: &str) -> PyResult<BackendKind> {
    name.parse()
        .map_err(|error: tensora::storage::UnknownBackend| refused(error.to_string()))
}
