//! Where bytes rest when they are not in a frame of the program: the compressed pool and the swap file
//! (same-filled pages rest in the page table itself).

pub mod pool;
pub mod swap;
