//! Lists of ranges (first, one past the last): in order, none empty, none touching the next.

/// A range: the first, and one past the last.
pub(crate) type Range = (u64, u64);

/// The list with a range added.
pub(crate) fn with(list: &[Range], range: Range) -> Vec<Range> {
    if range.0 >= range.1 {
        return list.to_vec();
    }
    let (before, rest) = list.split_at(list.partition_point(|(_, end)| *end < range.0));
    let (joined, after) = rest.split_at(rest.partition_point(|(first, _)| *first <= range.1));
    let first = joined.first().map_or(range.0, |join| join.0.min(range.0));
    let end = joined.last().map_or(range.1, |join| join.1.max(range.1));
    [before, &[(first, end)], after].concat()
}

/// The list with everything of a range taken out.
pub(crate) fn without(list: &[Range], range: Range) -> Vec<Range> {
    if range.0 >= range.1 {
        return list.to_vec();
    }
    let left = list
        .iter()
        .flat_map(|(first, end)| [(*first, (*end).min(range.0)), ((*first).max(range.1), *end)]);
    left.filter(|(first, end)| first < end).collect()
}

/// What of the list lies in a range.
pub(crate) fn within(list: &[Range], range: Range) -> impl Iterator<Item = Range> + '_ {
    let from = list.partition_point(|(_, end)| *end <= range.0);
    list[from..]
        .iter()
        .take_while(move |(first, _)| *first < range.1)
        .map(move |(first, end)| ((*first).max(range.0), (*end).min(range.1)))
        .filter(|(first, end)| first < end)
}

/// How much is in all ranges together.
pub(crate) fn total(list: &[Range]) -> u64 {
    list.iter().map(|(first, end)| end - first).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(list: &[Range]) -> BTreeSet<u64> {
        list.iter().flat_map(|(first, end)| *first..*end).collect()
    }

    proptest! {
        #[test]
        fn lists_of_ranges_agree_with_sets_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 1..30),
            (first, len) in (0u64..60, 0u64..20),
        ) {
            let (mut list, mut set) = (Vec::new(), BTreeSet::new());
            for (adds, first, len) in steps {
                let range = (first, first + len);
                if adds {
                    list = with(&list, range);
                    set.extend(range.0..range.1);
                } else {
                    list = without(&list, range);
                    set.retain(|number| !(range.0..range.1).contains(number));
                }
                prop_assert_eq!(&numbers(&list), &set);
                prop_assert_eq!(total(&list), set.len() as u64);
                prop_assert!(list.iter().all(|(first, end)| first < end));
                prop_assert!(list.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", list);
            }
            let inside: Vec<Range> = within(&list, (first, first + len)).collect();
            let wanted: BTreeSet<u64> = set.range(first..first + len).copied().collect();
            prop_assert_eq!(numbers(&inside), wanted);
        }
    }
}
