//! Calls whose buffers exceed what one call may pin: the transfers among them are made in pieces.

use super::read_own;
use crate::sys::syscall_raw;

/// One piece of a transfer: a plain call.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    nr: usize,
    args: [usize; 6],
    /// Where its buffer begins.
    pub addr: usize,
    /// Bytes of it.
    pub len: usize,
    /// Whether the transfer must end with it: another piece could wait for data that may never come.
    pub last: bool,
}

/// How a transfer is told where in the file it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Where the descriptor is, or nowhere.
    Here,
    /// At an offset: argument of the call.
    Offset(usize),
}

/// The pieces of a call.
#[derive(Debug)]
pub struct Parts {
    args: [usize; 6],
    /// The plain call that does a piece, or `None`: the call is not a transfer.
    plain: Option<usize>,
    at: At,
    /// Elements of a list of buffers; 0: one buffer.
    list: usize,
    /// It reads from something that can make a reader wait: not a file on a disk.
    waits: bool,
}

impl Parts {
    /// For a call. One buffer: `read` and its like; a list: `readv` and its like.
    pub fn of(nr: usize, args: &[usize; 6]) -> Parts {
        let (plain, at, is_list, reads) = match nr as libc::c_long {
            n @ (libc::SYS_read | libc::SYS_recvfrom | libc::SYS_getrandom) => (n, At::Here, false, true),
            n @ (libc::SYS_write | libc::SYS_sendto) => (n, At::Here, false, false),
            n @ libc::SYS_pread64 => (n, At::Offset(3), false, true),
            n @ libc::SYS_pwrite64 => (n, At::Offset(3), false, false),
            libc::SYS_readv => (libc::SYS_read, At::Here, true, true),
            libc::SYS_writev => (libc::SYS_write, At::Here, true, false),
            libc::SYS_preadv => (libc::SYS_pread64, At::Offset(3), true, true),
            libc::SYS_pwritev => (libc::SYS_pwrite64, At::Offset(3), true, false),
            libc::SYS_preadv2 if args[3] as isize == -1 => (libc::SYS_read, At::Here, true, true),
            libc::SYS_pwritev2 if args[3] as isize == -1 => (libc::SYS_write, At::Here, true, false),
            libc::SYS_preadv2 => (libc::SYS_pread64, At::Offset(3), true, true),
            libc::SYS_pwritev2 => (libc::SYS_pwrite64, At::Offset(3), true, false),
            _ => (-1, At::Here, false, false),
        };
        let plain = usize::try_from(plain).ok();
        let list = if is_list { args[2].clamp(1, 1024) } else { 0 };
        let waits = reads && !is_on_disk(args[0]);
        Parts { args: *args, plain, at, list, waits }
    }

    /// Whether the call is a transfer.
    pub fn known(&self) -> bool {
        self.plain.is_some()
    }

    /// The piece that begins `done` bytes into the transfer, at most `most` bytes; `None` at its end.
    pub fn next(&mut self, done: usize, most: usize) -> Option<Piece> {
        let nr = self.plain?;
        let random = nr == libc::SYS_getrandom as usize;
        let (buffer, length) = if random { (0, 1) } else { (1, 2) };
        let (addr, len) = match self.list {
            0 => (self.args[buffer].wrapping_add(done), self.args[length].saturating_sub(done)),
            n => self.element(n, done)?,
        };
        if len == 0 && (done > 0 || self.list > 0) {
            return None;
        }
        let len = len.min(most);
        let mut args = self.args;
        (args[buffer], args[length]) = (addr, len);
        if self.list > 0 {
            args[3..].fill(0);
        }
        if let At::Offset(i) = self.at {
            args[i] = self.args[i].wrapping_add(done);
        }
        Some(Piece { nr, args, addr, len, last: self.waits && !random })
    }

    /// The buffer that holds byte `done` of a list, from that byte on.
    fn element(&self, n: usize, done: usize) -> Option<(usize, usize)> {
        let mut before = 0usize;
        for i in 0..n {
            let mut pair = [0u8; 16];
            read_own(self.args[1].wrapping_add(i * 16), &mut pair).ok()?;
            let word = |at: usize| pair[at..at + 8].try_into().map_or(0, usize::from_ne_bytes);
            let (base, len) = (word(0), word(8));
            if done < before.saturating_add(len) {
                let skip = done - before;
                return Some((base.wrapping_add(skip), len - skip));
            }
            before = before.saturating_add(len);
        }
        None
    }
}

/// Whether a descriptor is a regular file or a block device.
fn is_on_disk(fd: usize) -> bool {
    // SAFETY: plain data, valid when zero.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let at = core::ptr::from_mut(&mut st) as usize;
    // SAFETY: the kernel fills the live structure.
    let r = unsafe { syscall_raw(libc::SYS_fstat, [fd, at, 0, 0, 0, 0]) };
    r == 0 && matches!(st.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
}

/// Makes the call of a piece. Returns the kernel's result.
pub fn make(piece: &Piece) -> isize {
    // SAFETY: a part of a call that the program made itself; the kernel checks the buffer.
    unsafe { syscall_raw(piece.nr as libc::c_long, piece.args) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(nr: libc::c_long, args: [usize; 6], most: usize, total: usize) -> Vec<(usize, usize, usize)> {
        let mut parts = Parts::of(nr as usize, &args);
        let (mut done, mut seen) = (0, Vec::new());
        while let Some(p) = parts.next(done, most) {
            seen.push((p.addr, p.len, p.args[3]));
            done += p.len;
            assert!(done <= total);
        }
        seen
    }

    #[test]
    fn one_buffer_is_cut_and_offsets_move_along() {
        assert_eq!(
            pieces(libc::SYS_write, [1, 100, 25, 0, 0, 0], 10, 25),
            [(100, 10, 0), (110, 10, 0), (120, 5, 0)]
        );
        assert_eq!(pieces(libc::SYS_pwrite64, [1, 100, 15, 7, 0, 0], 10, 15), [(100, 10, 7), (110, 5, 17)]);
    }

    #[test]
    fn lists_are_walked_over_empty_elements_and_across_borders() {
        let list = [[0usize, 0], [1000, 3], [2000, 0], [3000, 12]];
        let at = list.as_ptr() as usize;
        assert_eq!(
            pieces(libc::SYS_pwritev, [1, at, 4, 50, 0, 0], 10, 15),
            [(1000, 3, 50), (3000, 10, 53), (3010, 2, 63)]
        );
        let here = [1, at, 4, usize::MAX, usize::MAX, 0];
        assert_eq!(pieces(libc::SYS_pwritev2, here, 100, 15), [(1000, 3, 0), (3000, 12, 0)]);
    }

    #[test]
    fn what_is_not_a_transfer_has_no_pieces_and_readers_of_pipes_wait_for_one_only() {
        assert!(!Parts::of(libc::SYS_sendmsg as usize, &[0; 6]).known());
        let mut ends = [0; 2];
        // SAFETY: a live array.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let mut parts = Parts::of(libc::SYS_read as usize, &[ends[0] as usize, 100, 50, 0, 0, 0]);
        assert!(parts.next(0, 10).unwrap().last);
        ends.into_iter().for_each(crate::sys::close);
    }
}
