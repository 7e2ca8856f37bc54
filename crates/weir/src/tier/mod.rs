//! Where bytes rest when they are not in a frame of the program: so far the compressed pool
//! (same-filled pages rest in the page table itself).

pub mod pool;
