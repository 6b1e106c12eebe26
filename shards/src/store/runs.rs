//! A set of chunk-group numbers, kept as runs.
//!
//! What is held of a segment is nearly always a few runs, so this stays small for any size that a
//! manifest from a peer may claim, where a bitmap would not.

use std::ops::Range;

/// Group numbers as ascending, disjoint runs that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(Vec<Range<u64>>);

impl Runs {
    /// Every number below `end`.
    pub fn all(end: u64) -> Self {
        let mut runs = Self::default();
        runs.insert(0..end);
        runs
    }

    /// The runs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many runs there are.
    pub fn run_count(&self) -> usize {
        self.0.len()
    }

    /// Whether every number of `range` is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .0
                .iter()
                .any(|run| run.start <= range.start && range.end <= run.end)
    }

    /// Adds `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|run| run.end < range.start);
        let last = self.0.partition_point(|run| run.start <= range.end);
        let mut joined = range;
        if first < last {
            joined.start = joined.start.min(self.0[first].start);
            joined.end = joined.end.max(self.0[last - 1].end);
        }
        self.0.splice(first..last, [joined]);
    }

    /// Takes `range` out.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for run in self.0.drain(..) {
            for part in [
                run.start..run.end.min(range.start),
                run.start.max(range.end)..run.end,
            ] {
                if part.start < part.end {
                    left.push(part);
                }
            }
        }
        self.0 = left;
    }

    /// Adds every run of `other`.
    pub fn extend(&mut self, other: &Self) {
        for run in other.iter() {
            self.insert(run);
        }
    }

    /// The parts of `range` that are in the set.
    pub fn within(&self, range: &Range<u64>) -> Self {
        let parts = self.0.iter().filter_map(|run| {
            let part = run.start.max(range.start)..run.end.min(range.end);
            (part.start < part.end).then_some(part)
        });
        Self(parts.collect())
    }

    /// The parts of `range` that are not in the set.
    pub fn missing(&self, range: &Range<u64>) -> Self {
        let mut missing = Self::default();
        missing.insert(range.clone());
        for run in self.within(range).iter() {
            missing.remove(&run);
        }
        missing
    }
}

impl FromIterator<Range<u64>> for Runs {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut runs = Self::default();
        for range in ranges {
            runs.insert(range);
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(runs: &Runs) -> BTreeSet<u64> {
        runs.iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn runs_behave_like_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40),
            window in (0u64..60, 0u64..30),
        ) {
            let mut runs = Runs::default();
            let mut model = BTreeSet::new();
            for (add, start, length) in steps {
                let range = start..start + length;
                if add {
                    runs.insert(range.clone());
                    model.extend(range);
                } else {
                    runs.remove(&range);
                    model.retain(|number| !range.contains(number));
                }
                prop_assert_eq!(numbers(&runs), model.clone());
                let apart = runs.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart, "runs touch or are out of order");
            }
            let window = window.0..window.0 + window.1;
            let (inside, outside): (BTreeSet<u64>, BTreeSet<u64>) =
                window.clone().partition(|number| model.contains(number));
            prop_assert_eq!(numbers(&runs.within(&window)), inside);
            prop_assert_eq!(runs.contains(&window), outside.is_empty());
            prop_assert_eq!(numbers(&runs.missing(&window)), outside);
        }
    }
}
