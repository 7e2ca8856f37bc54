//! Weir as a library: memory larger than RAM for programs that ask for it, without a wrapper.
//!
//! A [`Pool`] is an engine with a budget of its own. A [`Region`] is memory from it, a slice of bytes that
//! may be larger than the budget; [`WeirVec`] is the same for numbers. `docs/rust.md` is the guide.

mod builder;
mod errors;
mod faults;
mod file;
mod inner;
mod pins;
mod pool;
mod region;
mod size;
mod threads;
mod vec;
mod whole;

pub use builder::Builder;
pub use errors::{AllocError, BuildError, FileError, MemoryError, PinError, RangeError};
pub use file::FileRegion;
pub use pool::{Pool, PoolStats};
pub use region::{Advice, Guard, Region};
pub use size::Size;
pub use vec::{Pod, WeirVec};
