//! Files that the program maps: the engine is told of large ones on disks. The mapping itself is the
//! kernel's, as it would be without Weir.

use crate::{demand, state, threads};
use core::ffi::c_int;
use weir::config::Files;
use weir::engine::files::known::NewMap;
use weir::engine::threads::say;
use weir::limits::FILE_BYTES_MIN;
use weir_os::mem::{PAGE_BYTES, round_up_page};

/// Locked pages stay, and pages of persistent memory are the device itself.
const LEAVE_ALONE: c_int =
    libc::MAP_ANONYMOUS | libc::MAP_LOCKED | libc::MAP_HUGETLB | libc::MAP_GROWSDOWN | libc::MAP_SYNC;

/// The kernel has mapped something for the program.
pub fn mapped(at: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, off: libc::off_t) {
    let Some(settings) = state::settings() else { return };
    let large = len >= FILE_BYTES_MIN && flags & LEAVE_ALONE == 0 && prot & libc::PROT_EXEC == 0;
    if !large || settings.files == Files::None || state::is_filtered() {
        return;
    }
    let Some(file) = weir_os::files::on_disk(fd) else { return };
    let Some(e) = demand::note_file(len) else { return };
    let bytes = round_up_page(len);
    if e.touches(at, bytes) || !threads::start_keeper(e) {
        return;
    }
    e.file_mapped(NewMap { start: at, bytes, offset: off as u64, fd, file });
    if e.files.is_impossible() && settings.files == Files::Kernel {
        say(format_args!(
            "mapped files cannot be kept within the budget: that takes /proc and Linux 6.7. --files none \
             leaves them to the kernel"
        ));
        weir_os::sys::exit_group(125);
    }
}

/// Has the kernel unmap a range. It is forgotten before: afterwards it may be another thread's already.
pub fn unmap(at: usize, len: usize, call: impl FnOnce() -> isize) -> isize {
    let right = len > 0 && at.is_multiple_of(PAGE_BYTES);
    let Some(e) = state::engine().filter(|_| right) else { return call() };
    let cut = e.file_unmapped(at, round_up_page(len));
    let result = call();
    if result == -1 {
        e.file_stays(cut);
    }
    result
}

/// The kernel has mapped something else over a range.
pub fn replaced(at: usize, len: usize) {
    if let Some(e) = state::engine() {
        e.file_unmapped(at, round_up_page(len));
    }
}

/// Has the kernel move or resize a mapping.
pub fn moving(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    let Some(e) = state::engine() else { return call() };
    // In its old place others may lie once it has moved.
    let what = e.file_at(old);
    let new = call();
    if new != -1 {
        let keep = flags & libc::MREMAP_DONTUNMAP != 0 || old_len == 0;
        e.file_moved(what, (old, round_up_page(old_len)), (new as usize, round_up_page(new_len)), keep);
    }
    new
}
