//! Newtypes for the things that would otherwise all be integers. Those that the kernel's door knows come from
//! there. Each prints with a prefix of its own: see [`weir_os::ids`], and pool handle `Hx1a`, cluster of the
//! swap file `Cx1`.

pub use weir_os::ids::{BLOCK_PAGES, BlockId, FrameId, PageId, SwapSlot, WindowId};

weir_os::ids! {
    /// Place of a record in the compressed pool: byte offset in the arena divided by 16, 40 bits.
    Handle(u64) "H";
    /// 2 MiB of the swap file.
    ClusterId(u32) "C";
}

/// The mask of the pages of a block in the range `start..end`.
pub fn clip(block: BlockId, start: u32, end: u32) -> u64 {
    let first = block.page(0).0;
    let (lo, hi) = (start.max(first), end.min(first + BLOCK_PAGES));
    if lo < hi { run_mask(lo - first, hi - lo) } else { 0 }
}

/// The lowest run of set bits in a 64-bit mask at or after `from`: (start, length).
pub fn next_run(mask: u64, from: u32) -> Option<(u32, u32)> {
    if from >= 64 {
        return None;
    }
    let rest = mask >> from;
    if rest == 0 {
        return None;
    }
    let start = from + rest.trailing_zeros();
    let len = (mask >> start).trailing_ones();
    Some((start, len))
}

/// A mask of `len` bits from bit `start`; `start + len <= 64`, so none from bit 64 on.
pub const fn run_mask(start: u32, len: u32) -> u64 {
    if len >= 64 { u64::MAX } else { ((1u64 << len) - 1).unbounded_shl(start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_with_their_prefix() {
        assert_eq!(format!("{:?} {:?}", Handle(255), ClusterId(1)), "Hxff Cx1");
    }

    #[test]
    fn a_block_has_its_part_of_a_range() {
        let block = BlockId(2);
        assert_eq!([clip(block, 0, 128), clip(block, 192, 300), clip(block, 130, 130)], [0; 3]);
        assert_eq!(clip(block, 130, 132), 0b1100);
        assert_eq!([clip(block, 100, 129), clip(block, 191, 200)], [1, 1 << 63]);
        assert_eq!([clip(block, 128, 192), clip(block, 0, u32::MAX)], [u64::MAX; 2]);
    }

    #[test]
    fn runs_of_a_mask_come_in_order_and_cover_it() {
        let mask = 0b1011_1000_0000_0001u64 | 1 << 63;
        let (mut from, mut seen) = (0, 0);
        while let Some((s, n)) = next_run(mask, from) {
            seen |= run_mask(s, n);
            from = s + n;
        }
        assert_eq!(seen, mask);
        assert_eq!(next_run(u64::MAX, 0), Some((0, 64)));
        assert_eq!((run_mask(0, 64), run_mask(64, 0)), (u64::MAX, 0));
    }
}
