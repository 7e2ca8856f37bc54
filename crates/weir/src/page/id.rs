//! Newtypes for the things that would otherwise all be integers. Each prints with a prefix of its
//! own: page `Px1a`, block `Bx1`, slot of the frame arena `Fx1a`, window `Wx1`, pool handle `Hx1a`,
//! record in the swap file `Sx1a`, cluster of it `Cx1`.

use core::fmt;

/// Pages in a block, and slots in a window.
pub const BLOCK_PAGES: u32 = 64;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($repr:ty) $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "x{:x}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A page of the managed space, counted from its base.
    PageId(u32) "P";
    /// 64 aligned pages: unit of locking and of unmapping.
    BlockId(u32) "B";
    /// A place for one frame in the frame arena, counted from its base.
    Slot(u32) "F";
    /// 64 aligned slots, which can take a block.
    WindowId(u32) "W";
    /// Place of a record in the compressed pool: byte offset in the arena divided by 16, 40 bits.
    Handle(u64) "H";
    /// A record in the swap file: a row of the slot table.
    SlotId(u32) "S";
    /// 2 MiB of the swap file.
    ClusterId(u32) "C";
}

impl PageId {
    /// The block it lies in.
    pub const fn block(self) -> BlockId {
        BlockId(self.0 / BLOCK_PAGES)
    }
    /// Its number within the block, 0..64.
    pub const fn index(self) -> u32 {
        self.0 % BLOCK_PAGES
    }
}

impl BlockId {
    /// Its page number `i` (0..64).
    pub const fn page(self, i: u32) -> PageId {
        PageId(self.0 * BLOCK_PAGES + i)
    }
}

impl Slot {
    /// The window it lies in.
    pub const fn window(self) -> WindowId {
        WindowId(self.0 / BLOCK_PAGES)
    }
    /// Its number within the window, 0..64.
    pub const fn index(self) -> u32 {
        self.0 % BLOCK_PAGES
    }
}

impl WindowId {
    /// Its slot number `i` (0..64).
    pub const fn slot(self, i: u32) -> Slot {
        Slot(self.0 * BLOCK_PAGES + i)
    }
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

/// A mask of `len` bits from bit `start`; `start + len <= 64`.
pub const fn run_mask(start: u32, len: u32) -> u64 {
    if len >= 64 { u64::MAX } else { ((1u64 << len) - 1) << start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_with_their_prefix_and_split_into_parts() {
        assert_eq!(format!("{:?} {:?} {:?}", PageId(0x1a), BlockId(1), Handle(255)), "Px1a Bx1 Hxff");
        assert_eq!(PageId(130).block(), BlockId(2));
        assert_eq!(PageId(130).index(), 2);
        assert_eq!(BlockId(2).page(2), PageId(130));
        assert_eq!(WindowId(3).slot(5).window(), WindowId(3));
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
        assert_eq!(run_mask(0, 64), u64::MAX);
    }
}
