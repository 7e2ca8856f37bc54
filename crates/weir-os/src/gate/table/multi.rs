//! Calls that are many calls: `ioctl`, `fcntl`, `futex`, `prctl` and their like.

use super::Decoder as D;
use super::walk::{Caller, TEXT_MAX, Walk, int_len, word, word16, word32};
use crate::sys::Errno;

pub(super) const SIOCGIFCONF: u32 = 0x8912;
pub(super) const SIOCETHTOOL: u32 = 0x8946;
pub(super) const SIOCADDRT: u32 = 0x890b;
pub(super) const SIOCDELRT: u32 = 0x890c;
pub(super) const SG_IO: u32 = 0x2285;
/// Requests whose encoded size leaves out the array behind the structure.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FIDEDUPERANGE: u32 = 0xc018_9436;

/// What is reported for a structure of unknown size.
const UNKNOWN: usize = 256;
/// Bytes of a `struct sock_filter`.
const INSTRUCTION: usize = 8;

type Done = Result<(), Errno>;

/// Reports what the arguments marked `By` and `Deep` point to.
pub(super) fn decode<C: Caller>(decoder: D, walk: &mut Walk<'_, C>) -> Done {
    match decoder {
        D::Plain => Ok(()),
        D::Ioctl => ioctl(walk),
        D::Fcntl => fcntl(walk),
        D::Futex => futex(walk),
        D::SetSockopt => setsockopt(walk),
        D::GetSockopt => getsockopt(walk),
        D::Semctl => semctl(walk),
        D::Ptrace => ptrace(walk),
        D::Prctl => prctl(walk),
        D::Keyctl => keyctl(walk),
        D::MqNotify => mq_notify(walk),
        D::KexecLoad => kexec_load(walk),
        D::IoSubmit => io_submit(walk),
        D::Seccomp => seccomp(walk),
        D::Bpf => {
            walk.partly = true;
            walk.report(walk.arg(1), walk.arg(super::int(2)))
        }
        D::Fsconfig => fsconfig(walk),
        D::XattrArgs => xattr_args(walk),
        D::UringSetup => {
            walk.partly = true;
            walk.report(walk.arg(1), 120)
        }
        D::UringEnter => uring_enter(walk),
        D::UringRegister => uring_register(walk),
    }
}

fn ioctl<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (request, addr) = (walk.arg(1) as u32, walk.arg(2));
    match request {
        SIOCGIFCONF => {
            let Some(header) = walk.record::<16>(addr)? else { return Ok(()) };
            return walk.report(word(&header, 8), int_len(word32(&header, 0) as usize));
        }
        SG_IO => return sg_io(walk, addr),
        SIOCETHTOOL => {
            walk.partly = true;
            let Some(ifreq) = walk.record::<40>(addr)? else { return Ok(()) };
            return walk.report(word(&ifreq, 16), UNKNOWN);
        }
        SIOCADDRT | SIOCDELRT => {
            let Some(route) = walk.record::<120>(addr)? else { return Ok(()) };
            // rt_dev: a name of at most 16 bytes.
            return walk.report(word(&route, 88), 16);
        }
        FS_IOC_FIEMAP => {
            let Some(map) = walk.record::<32>(addr)? else { return Ok(()) };
            return walk.report(addr, (word32(&map, 24) as usize).saturating_mul(56).saturating_add(32));
        }
        FIDEDUPERANGE => {
            let Some(range) = walk.record::<24>(addr)? else { return Ok(()) };
            return walk.report(addr, usize::from(word16(&range, 16)) * 32 + 24);
        }
        _ => {}
    }
    let (encoded, directions) = ((request >> 16 & 0x3fff) as usize, request >> 30);
    if directions != 0 && encoded != 0 {
        // TUNSETIFF and its kin say `int` and take a `struct ifreq`.
        let least = if request >> 8 & 0xff == 0x54 { 40 } else { 0 };
        return walk.report(addr, encoded.max(least));
    }
    let len = old_ioctl(request);
    walk.partly = len.is_none();
    walk.report(addr, len.unwrap_or(UNKNOWN))
}

/// The bytes behind the argument of a request from before sizes were encoded (0: a number).
fn old_ioctl(request: u32) -> Option<usize> {
    Some(match request {
        1 | 2 => 4,
        0x1200..=0x12ff => 16,
        0x5401..=0x5404 => 44,
        0x5405..=0x5408 => 18,
        0x5409..=0x540b | 0x540c..=0x540e | 0x5422 | 0x5425 | 0x5427 | 0x5428 | 0x5450 | 0x5451 => 0,
        0x540f..=0x5411 | 0x5415..=0x541b | 0x5420 | 0x5421 | 0x5423 | 0x5424 | 0x5429 | 0x5452 => 4,
        0x5412 => 1,
        0x5413 | 0x5414 | 0x5460 => 8,
        0x541e | 0x541f => 72,
        0x8901..=0x8905 => 4,
        0x8906 | 0x8907 => 16,
        0x8910..=0x8911 | 0x8913..=0x893f | 0x8947..=0x8949 => 40,
        0x8942..=0x8945 | 0x8970 | 0x8971 => 40,
        0x8953..=0x8955 => 68,
        _ => return None,
    })
}

fn sg_io<C: Caller>(walk: &mut Walk<'_, C>, addr: usize) -> Done {
    let Some(header) = walk.record::<88>(addr)? else { return Ok(()) };
    let lengths = word16(&header, 8).to_ne_bytes();
    let (data, vectors) = (word(&header, 16), word16(&header, 10));
    walk.report(word(&header, 24), usize::from(lengths[0]))?;
    walk.report(word(&header, 32), usize::from(lengths[1]))?;
    match vectors {
        0 => walk.report(data, word32(&header, 12) as usize),
        count => walk.vector(data, usize::from(count)),
    }
}

fn fcntl<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let len = match walk.arg(1) as u32 {
        // F_GETLK.., F_OFD_GETLK..
        5..=7 | 36..=38 => 32,
        // F_SETOWN_EX, F_GETOWN_EX, F_GETOWNER_UIDS
        15..=17 => 8,
        // F_GET_RW_HINT.., F_GETDELEG..
        1035..=1040 => 8,
        _ => 0,
    };
    walk.report(walk.arg(2), len)
}

fn futex<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    const PRIVATE: u32 = 128;
    const CLOCK_REALTIME: u32 = 256;
    let flagged = walk.arg(1) as u32;
    let op = flagged & !(PRIVATE | CLOCK_REALTIME);
    // FUTEX_WAKE, FUTEX_WAKE_BITSET of a private word: the address is a key, the word is not read.
    if !(matches!(op, 1 | 10) && flagged & PRIVATE != 0) {
        walk.report(walk.arg(0), 4)?;
    }
    // WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
    if matches!(op, 0 | 6 | 9 | 11 | 13) {
        walk.report(walk.arg(3), 16)?;
    }
    // REQUEUE, CMP_REQUEUE, WAKE_OP, WAIT_REQUEUE_PI, CMP_REQUEUE_PI
    if matches!(op, 3 | 4 | 5 | 11 | 12) {
        walk.report(walk.arg(4), 4)?;
    }
    // Operations of later kernels.
    if op > 13 {
        walk.partly = true;
        walk.report(walk.arg(3), 16)?;
        walk.report(walk.arg(4), 4)?;
    }
    Ok(())
}

const SOL_SOCKET: u32 = 1;

fn setsockopt<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (level, option) = (walk.arg(1) as u32, walk.arg(2) as u32);
    let addr = walk.arg(3);
    walk.report(addr, walk.arg(super::int(4)))?;
    match (level, option) {
        // SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF
        (SOL_SOCKET, 26 | 51) => filter_program(walk, addr),
        // The table replacements of the packet filters point to counters.
        (0 | 41, 64) | (0, 96 | 128) => {
            walk.partly = true;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// `struct sock_fprog` and its instructions.
fn filter_program<C: Caller>(walk: &mut Walk<'_, C>, addr: usize) -> Done {
    let Some(program) = walk.record::<16>(addr)? else { return Ok(()) };
    walk.report(word(&program, 8), usize::from(word16(&program, 0)) * INSTRUCTION)
}

fn getsockopt<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (addr, length) = (walk.arg(3), walk.arg(4));
    if addr == 0 {
        return Ok(());
    }
    let len = int_len(word32(&walk.bytes::<4>(length)?, 0) as usize);
    match (walk.arg(1) as u32, walk.arg(2) as u32) {
        // SO_GET_FILTER counts instructions.
        (SOL_SOCKET, 26) => walk.report(addr, len.saturating_mul(INSTRUCTION)),
        // TCP_ZEROCOPY_RECEIVE: holds addresses to map to and to copy to.
        (6, 35) => {
            walk.partly = true;
            walk.report(addr, len)
        }
        _ => walk.report(addr, len),
    }
}

fn semctl<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    const IPC_64: u32 = 0x100;
    let len = match walk.arg(2) as u32 & !IPC_64 {
        // IPC_RMID, GETPID, GETVAL, GETNCNT, GETZCNT, SETVAL
        0 | 11 | 12 | 14 | 15 | 16 => 0,
        // GETALL, SETALL: 2 bytes for each semaphore of the set, of which 65535 is the most.
        13 | 17 => 128 << 10,
        _ => 104,
    };
    walk.report(walk.arg(3), len)
}

fn ptrace<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (request, addr, data) = (walk.arg(0) as u32, walk.arg(2), walk.arg(3));
    match request {
        // TRACEME, POKE*, CONT, KILL, SINGLESTEP, ATTACH, DETACH, SYSCALL, SETOPTIONS, SEIZE, INTERRUPT,
        // LISTEN
        0 | 4..=9 | 16 | 17 | 24 | 0x4200 | 0x4206..=0x4208 => Ok(()),
        // PEEK*, GETEVENTMSG, GETSIGMASK, SETSIGMASK
        1..=3 | 0x4201 | 0x420a | 0x420b => walk.report(data, 8),
        // PTRACE_ARCH_PRCTL
        30 => walk.report(addr, 8),
        // GETREGSET, SETREGSET
        0x4204 | 0x4205 => walk.vector(data, 1),
        // PEEKSIGINFO
        0x4209 => {
            let Some(what) = walk.record::<16>(addr)? else { return Ok(()) };
            walk.report(data, int_len(word32(&what, 12) as usize).saturating_mul(128))
        }
        // SECCOMP_GET_FILTER: the longest program.
        0x420c => walk.report(data, 4096 * INSTRUCTION),
        // GETREGS, SETREGS, GETFPREGS, SETFPREGS, thread areas, siginfos; the size in the third argument
        _ => {
            let stated = if matches!(request, 0x420d..=0x42ff) { addr.min(4096) } else { 0 };
            walk.report(data, stated.max(512))
        }
    }
}

fn prctl<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    const PR_SET_VMA: u32 = 0x5356_4d41;
    const PR_GET_AUXV: u32 = 0x4155_5856;
    match walk.arg(0) as u32 {
        // GET_PDEATHSIG, GET_UNALIGN, GET_FPEMU, GET_FPEXC, GET_ENDIAN, GET_TSC
        2 | 5 | 9 | 11 | 19 | 25 => walk.report(walk.arg(1), 4),
        // SET_NAME, GET_NAME
        15 | 16 => walk.report(walk.arg(1), 16),
        // SET_SECCOMP with a filter
        22 if walk.arg(1) == 2 => filter_program(walk, walk.arg(2)),
        // SET_MM: a map (which points to an auxiliary vector), its size, a vector; else addresses
        35 => match walk.arg(1) {
            14 => {
                let size = walk.arg(3).min(4096);
                walk.report(walk.arg(2), size)?;
                let Some(map) = walk.record::<104>(walk.arg(2))? else { return Ok(()) };
                walk.report(word(&map, 88), word32(&map, 96) as usize)
            }
            15 => walk.report(walk.arg(2), 4),
            12 => walk.report(walk.arg(2), walk.arg(3)),
            _ => Ok(()),
        },
        // GET_TID_ADDRESS, GET_SHADOW_STACK_STATUS
        40 | 74 => walk.report(walk.arg(1), 8),
        // SET_SYSCALL_USER_DISPATCH: the selector byte
        59 => walk.report(walk.arg(4), 1),
        // SCHED_CORE
        62 => walk.report(walk.arg(4), 8),
        PR_SET_VMA => walk.string(walk.arg(4), 80),
        PR_GET_AUXV => walk.report(walk.arg(1), walk.arg(2)),
        0..=80 => Ok(()),
        _ => {
            walk.partly = true;
            for k in 1..=4 {
                walk.report(walk.arg(k), 8)?;
            }
            Ok(())
        }
    }
}

fn keyctl<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (second, third, fourth, fifth) = (walk.arg(1), walk.arg(2), walk.arg(3), walk.arg(4));
    match walk.arg(0) as u32 {
        // JOIN_SESSION_KEYRING
        1 => walk.string(second, 4096),
        // UPDATE, DESCRIBE, READ, INSTANTIATE, GET_SECURITY
        2 | 6 | 11 | 12 | 17 => walk.report(third, fourth),
        // SEARCH, RESTRICT_KEYRING
        10 | 29 => walk.string(third, 4096).and_then(|()| walk.string(fourth, 4096)),
        // INSTANTIATE_IOV
        20 if third != 0 => walk.vector(third, fourth),
        // DH_COMPUTE: the fifth points to a hash name and other information
        23 => {
            walk.report(second, 12)?;
            walk.report(third, fourth)?;
            let Some(kdf) = walk.record::<56>(fifth)? else { return Ok(()) };
            walk.string(word(&kdf, 0), 128)?;
            walk.report(word(&kdf, 8), word32(&kdf, 16) as usize)
        }
        // PKEY_QUERY
        24 => walk.string(fourth, 4096).and_then(|()| walk.report(fifth, 48)),
        // PKEY_ENCRYPT, DECRYPT, SIGN, VERIFY
        25..=28 => {
            walk.string(third, 4096)?;
            let Some(params) = walk.record::<40>(second)? else { return Ok(()) };
            walk.report(fourth, word32(&params, 4) as usize)?;
            walk.report(fifth, word32(&params, 8) as usize)
        }
        // CAPABILITIES
        31 => walk.report(second, third),
        0..=32 => Ok(()),
        _ => {
            walk.partly = true;
            Ok(())
        }
    }
}

/// `struct sigevent`; with SIGEV_THREAD its value points to a cookie of 32 bytes.
fn mq_notify<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let Some(event) = walk.record::<64>(walk.arg(1))? else { return Ok(()) };
    if word32(&event, 12) == 2 { walk.report(word(&event, 0), 32) } else { Ok(()) }
}

fn kexec_load<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (addr, count) = (walk.arg(2), walk.arg(1).min(16));
    walk.report(addr, count * 32)?;
    for at in 0..if addr == 0 { 0 } else { count } {
        let segment = walk.bytes::<16>(addr.saturating_add(at * 32))?;
        walk.report(word(&segment, 0), word(&segment, 8))?;
    }
    Ok(())
}

/// An array of pointers to `struct iocb`.
fn io_submit<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (addr, count) = (walk.arg(2), walk.arg(1));
    if addr == 0 || count > isize::MAX as usize {
        return Ok(());
    }
    walk.report(addr, count.saturating_mul(8))?;
    // The bound on reads ends this loop for absurd counts.
    for at in 0..count {
        let pointer = word(&walk.bytes::<8>(addr.saturating_add(at.saturating_mul(8)))?, 0);
        let Some(iocb) = walk.record::<64>(pointer)? else { continue };
        let (buffer, bytes) = (word(&iocb, 24), word(&iocb, 32));
        match word16(&iocb, 16) {
            0 | 1 => walk.report(buffer, bytes)?,
            7 | 8 if buffer != 0 => walk.vector(buffer, bytes)?,
            // Syncs and polls have no buffer.
            2 | 3 | 5 | 6 | 7 | 8 => {}
            _ => walk.partly = true,
        }
    }
    Ok(())
}

fn seccomp<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    match walk.arg(0) as u32 {
        0 => Ok(()),
        1 => filter_program(walk, walk.arg(2)),
        2 => walk.report(walk.arg(2), 4),
        3 => walk.report(walk.arg(2), 6),
        _ => {
            walk.partly = true;
            walk.report(walk.arg(2), UNKNOWN)
        }
    }
}

fn fsconfig<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let value = walk.arg(3);
    match walk.arg(1) as u32 {
        // SET_STRING, SET_PATH, SET_PATH_EMPTY
        1 | 3 | 4 => walk.string(value, 4096),
        // SET_BINARY
        2 => walk.report(value, walk.arg(super::int(4))),
        _ => Ok(()),
    }
}

/// `struct xattr_args`: the value's address and length.
fn xattr_args<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (addr, size) = (walk.arg(4), walk.arg(5));
    walk.report(addr, size.min(4096))?;
    let Some(args) = walk.record::<16>(addr)? else { return Ok(()) };
    walk.report(word(&args, 0), word32(&args, 8) as usize)
}

/// The submission queue itself is memory that the decoder does not know: `Partly` whenever the call submits.
fn uring_enter<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    const EXT_ARG: usize = 8;
    walk.partly = walk.arg(1) as u32 != 0;
    if walk.arg(3) & EXT_ARG == 0 {
        return walk.report(walk.arg(4), 8);
    }
    let Some(extended) = walk.record::<24>(walk.arg(4))? else { return Ok(()) };
    walk.report(word(&extended, 0), 8)?;
    walk.report(word(&extended, 16), 16)
}

fn uring_register<C: Caller>(walk: &mut Walk<'_, C>) -> Done {
    let (addr, count) = (walk.arg(2), walk.arg(super::int(3)));
    walk.partly = true;
    if addr == 0 {
        return Ok(());
    }
    match walk.arg(1) as u32 & 0xff {
        // REGISTER_BUFFERS
        0 => walk.vector(addr, count),
        // REGISTER_PROBE and others with arrays: none has larger elements.
        _ => walk.report(addr, count.saturating_mul(64).clamp(64, TEXT_MAX)),
    }
}
