//! Calls whose buffer exceeds what one call may pin.

use super::read_own;

/// Makes a call transfer less, where less is an answer that every caller must expect: the buffer is
/// larger than the share of the budget that a call may pin. A list of buffers becomes its first.
/// False when the call has no shorter form.
pub fn shorten(nr: &mut usize, args: &mut [usize; 6], bytes: usize) -> bool {
    const PLAIN: [libc::c_long; 8] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_getdents64,
        libc::SYS_getrandom,
    ];
    const LISTS: [(libc::c_long, libc::c_long); 4] = [
        (libc::SYS_readv, libc::SYS_read),
        (libc::SYS_writev, libc::SYS_write),
        (libc::SYS_preadv, libc::SYS_pread64),
        (libc::SYS_pwritev, libc::SYS_pwrite64),
    ];
    if let Some((_, plain)) = LISTS.iter().find(|(list, _)| *list as usize == *nr) {
        let mut first = [0u8; 16];
        if read_own(args[1], &mut first).is_err() {
            return false;
        }
        let word = |at: usize| usize::from_ne_bytes(first[at..at + 8].try_into().unwrap_or_default());
        *nr = *plain as usize;
        (args[1], args[2]) = (word(0), word(8));
    }
    let length = if *nr as libc::c_long == libc::SYS_getrandom { 1 } else { 2 };
    let can = bytes > 0 && PLAIN.contains(&(*nr as libc::c_long));
    if can {
        args[length] = args[length].min(bytes);
    }
    can
}

