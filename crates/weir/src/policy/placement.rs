//! Placement: which tier a page goes to when its turn comes to leave its frame.

use crate::config::rules::{Rule, is_on};

/// Where a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Its frame is dropped: the copy that was kept of it is still true.
    Drop,
    /// Into the page table: all its words are the same.
    Same,
    /// Into the pool; its record is to be made, unless it is there already.
    Pool,
    /// Into the swap file.
    Swap,
    /// Nowhere: it is mapped again.
    Keep,
}

/// What the copy is worth that was kept of a page when it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// There is none, or the page has changed since.
    Nothing,
    /// A record in the pool.
    Record,
    /// A slot in the swap file.
    SwapSlot,
    /// A slot of a page that was in the pool as well.
    WarmSlot,
}

/// What compressing made of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All its words are the same.
    Same,
    /// A record that is worth storing.
    Record,
    /// It does not compress, or was not tried.
    Stuck,
}

/// Where a page goes whose kept copy is still true; `None`: where what compressing makes of it goes. What was
/// read from the file once would otherwise go there for ever, and be read again each time: it goes to the
/// pool while this has room to `spare`, unless it did not compress last time and it is not its turn to be
/// `tried` again.
pub fn unchanged(
    kept: Kept,
    stuck: bool,
    spare: impl FnOnce() -> bool,
    tried: impl FnOnce() -> bool,
) -> Option<Placement> {
    match kept {
        Kept::Nothing => None,
        Kept::Record => Some(Placement::Drop),
        Kept::WarmSlot => Some(Placement::Pool),
        Kept::SwapSlot if is_on(Rule::PoolSpare) && spare() && (!stuck || tried()) => Some(Placement::Pool),
        Kept::SwapSlot => Some(Placement::Drop),
    }
}

/// Where a page goes that has no true copy. `usable`: the swap file takes pages.
pub fn changed(shape: Shape, usable: bool) -> Placement {
    match shape {
        Shape::Same => Placement::Same,
        Shape::Record => Placement::Pool,
        Shape::Stuck => beyond_pool(usable),
    }
}

/// Where a page goes for which the pool is no place.
pub fn beyond_pool(usable: bool) -> Placement {
    if usable { Placement::Swap } else { Placement::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_whose_copy_is_true_is_dropped_or_goes_to_the_pool_with_its_slot() {
        let of = |kept, stuck, spare, tried| unchanged(kept, stuck, || spare, || tried);
        assert_eq!(of(Kept::Nothing, false, true, true), None);
        assert_eq!(of(Kept::Record, false, true, true), Some(Placement::Drop));
        assert_eq!(of(Kept::WarmSlot, true, false, false), Some(Placement::Pool));
        for (stuck, spare, tried, to) in [
            (false, true, false, Placement::Pool),
            (false, false, true, Placement::Drop),
            (true, true, true, Placement::Pool),
            (true, true, false, Placement::Drop),
        ] {
            assert_eq!(of(Kept::SwapSlot, stuck, spare, tried), Some(to), "{stuck} {spare} {tried}");
        }
    }

    #[test]
    fn a_changed_page_goes_where_its_shape_says_and_stays_where_nothing_takes_it() {
        let shapes = [Shape::Same, Shape::Record, Shape::Stuck];
        assert_eq!(shapes.map(|s| changed(s, true)), [Placement::Same, Placement::Pool, Placement::Swap]);
        assert_eq!(shapes.map(|s| changed(s, false)), [Placement::Same, Placement::Pool, Placement::Keep]);
    }
}
