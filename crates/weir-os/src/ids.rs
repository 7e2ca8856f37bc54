//! Newtypes for the things that would otherwise all be integers. Each prints with a prefix of its own: page
//! `Px1a`, block `Bx1`, frame of the arena `Fx1a`, window `Wx1`, record in the swap file `Sx1a`.

/// Pages in a block, and frames in a window.
pub const BLOCK_PAGES: u32 = 64;

/// Newtypes of integers that print with a prefix: at no cost in size, alignment or how they are passed.
#[macro_export]
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($repr:ty) $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::write!(f, ::core::concat!($prefix, "x{:x}"), self.0)
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
    FrameId(u32) "F";
    /// 64 aligned places for frames, which can take a block.
    WindowId(u32) "W";
    /// A record in the swap file: a row of the slot table.
    SwapSlot(u32) "S";
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

impl FrameId {
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
    /// Its place number `i` (0..64).
    pub const fn frame(self, i: u32) -> FrameId {
        FrameId(self.0 * BLOCK_PAGES + i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_with_their_prefix_and_split_into_parts() {
        assert_eq!(format!("{:?} {:?} {:?}", PageId(0x1a), BlockId(1), SwapSlot(255)), "Px1a Bx1 Sxff");
        assert_eq!(PageId(130).block(), BlockId(2));
        assert_eq!(PageId(130).index(), 2);
        assert_eq!(BlockId(2).page(2), PageId(130));
        assert_eq!(WindowId(3).frame(5), FrameId(197));
        assert_eq!(WindowId(3).frame(5).window(), WindowId(3));
        assert_eq!(FrameId(197).index(), 5);
    }

    #[test]
    fn a_name_costs_nothing() {
        assert_eq!((size_of::<FrameId>(), align_of::<PageId>()), (size_of::<u32>(), align_of::<u32>()));
    }
}
