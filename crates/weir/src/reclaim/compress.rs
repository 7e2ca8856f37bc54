//! Compress: what form a page takes outside its frame. Chosen per page.

use crate::config::Codec as Setting;
use crate::config::rules::{Rule, is_on};
use crate::limits::{RECORD_BYTES_MAX, RUN_NS_MAX, STORE_PER_HOLD};
use crate::policy::placement::Shape;
use crate::tier::pool::Codec;
use weir_os::codec::{self, PageBytes, Scratch};

/// Output buffers of a workbench: the records of one hold.
const BUFFERS: usize = STORE_PER_HOLD as usize;

/// The workbench of one reclaiming thread: codec state and the output buffers. About 32 KiB.
#[repr(C)]
pub struct Workbench {
    scratch: Scratch,
    out: [[u8; RECORD_BYTES_MAX]; BUFFERS],
    yielded_ns: u64,
}

impl Workbench {
    /// Gives up the processor after [`RUN_NS_MAX`] of work: a thread that was woken on it meanwhile
    /// (the program, with its page) must not wait for the end of our slice, which is milliseconds.
    /// Yielding more often would leave reclaim behind a busy handler.
    pub fn let_others_run(&mut self) {
        let now = weir_os::thread::now_ns();
        if now.wrapping_sub(self.yielded_ns) > RUN_NS_MAX {
            weir_os::thread::yield_now();
            self.yielded_ns = weir_os::thread::now_ns();
        }
    }

    /// The first `len` bytes of a buffer.
    pub fn bytes(&self, buffer: usize, len: usize) -> &[u8] {
        &self.out[buffer][..len]
    }

    /// An empty workbench.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Workbench {
        Workbench { scratch: Scratch::new(), out: [[0; RECORD_BYTES_MAX]; BUFFERS], yielded_ns: 0 }
    }
}

impl core::fmt::Debug for Workbench {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Workbench")
    }
}

/// What became of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// Every 8-byte word is this one.
    Same(u64),
    /// A record of these bytes.
    Record(Codec, &'a [u8]),
    /// Larger than [`RECORD_BYTES_MAX`]: not worth storing.
    Stuck,
}

impl Form<'_> {
    /// What it is, without its bytes.
    pub fn shape(&self) -> Shape {
        match self {
            Form::Same(_) => Shape::Same,
            Form::Record(..) => Shape::Record,
            Form::Stuck => Shape::Stuck,
        }
    }
}

/// The form of a page that did not compress last time and is not tried now.
pub fn untried<'a>(page: &PageBytes) -> Form<'a> {
    codec::same_filled(page).map_or(Form::Stuck, Form::Same)
}

/// Finds the form of a page; a record is in the buffer of this number.
pub fn compress<'a>(
    workbench: &'a mut Workbench,
    buffer: usize,
    setting: Setting,
    page: &PageBytes,
) -> Form<'a> {
    if let Some(value) = codec::same_filled(page) {
        return Form::Same(value);
    }
    if setting == Setting::None {
        return Form::Stuck;
    }
    let (scratch, out) = (&mut workbench.scratch, &mut workbench.out[buffer]);
    if setting == Setting::Zstd {
        return match codec::zstd::compress(page, out) {
            Some(n) => Form::Record(Codec::Zstd, workbench.bytes(buffer, n)),
            None => Form::Stuck,
        };
    }
    let typed = is_on(Rule::Shuffle) && setting == Setting::Auto && codec::looks_typed(page);
    let first = if typed {
        codec::shuffle_lz4_compress(scratch, page, out).map(|n| (Codec::ShuffleLz4, n))
    } else {
        codec::lz4_compress(scratch, page, out).map(|n| (Codec::Lz4, n))
    };
    let chosen = match first {
        // The probe guessed wrong: plain LZ4 may still do.
        None if typed => codec::lz4_compress(scratch, page, out).map(|n| (Codec::Lz4, n)),
        other => other,
    };
    match chosen {
        Some((codec, n)) => Form::Record(codec, workbench.bytes(buffer, n)),
        None => Form::Stuck,
    }
}
