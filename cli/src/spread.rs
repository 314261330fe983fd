//! Repeated measurements in three numbers.

use serde::Serialize;

/// Median, least and greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` for no values at all.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match (sorted.get(middle)?, sorted.len().is_multiple_of(2)) {
            (upper, true) => (sorted[middle - 1] + upper) / 2.0,
            (&only, false) => only,
        };
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_of_odd_and_even_numbers() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[]), None);
        let spread = of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
    }
}
