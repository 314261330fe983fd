//! Lookup of names that are stored elsewhere: a hash table of positions.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Finds a name's position in a list without holding a second copy of the name. The caller
/// passes, each time, how to get from a position to its name.
#[derive(Clone)]
pub(crate) struct Names {
    positions: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Names {
    /// Indexes `count` names, or gives the positions of the first pair of equal ones.
    pub(crate) fn build<'a>(
        count: usize,
        name_at: impl Fn(usize) -> &'a str,
    ) -> Result<Self, (usize, usize)> {
        let hasher = DefaultHashBuilder::default();
        let mut positions = HashTable::with_capacity(count);
        for position in 0..count {
            let name = name_at(position);
            let hash = hasher.hash_one(name);
            let entry = positions.entry(
                hash,
                |&other: &u32| name_at(other as usize) == name,
                |&other| hasher.hash_one(name_at(other as usize)),
            );
            match entry {
                hashbrown::hash_table::Entry::Occupied(first) => {
                    return Err((*first.get() as usize, position));
                }
                hashbrown::hash_table::Entry::Vacant(slot) => {
                    // A header has at most 100,000,000 bytes, an index 256 MiB, and callers
                    // bound what they merge: positions fit.
                    slot.insert(position as u32);
                }
            }
        }
        Ok(Self { positions, hasher })
    }

    /// The position of `name`.
    pub(crate) fn find<'a>(&self, name: &str, name_at: impl Fn(usize) -> &'a str) -> Option<usize> {
        self.positions
            .find(self.hasher.hash_one(name), |&at| {
                name_at(at as usize) == name
            })
            .map(|&at| at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_the_second_of_a_pair_is_reported() {
        let list = ["a", "", "層", "a b"];
        let names = Names::build(list.len(), |at| list[at]).ok().unwrap();
        for (at, name) in list.iter().enumerate() {
            assert_eq!(names.find(name, |at| list[at]), Some(at));
        }
        assert_eq!(names.find("b", |at| list[at]), None);
        let twice = ["a", "b", "c", "b", "a"];
        assert_eq!(Names::build(5, |at| twice[at]).err(), Some((1, 3)));
    }
}
