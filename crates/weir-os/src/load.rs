//! Plain loads, decoded: which bytes an instruction reads and which register gets them, so that they can be put there without
//! the page being mapped.
//!
//! Known are `mov`, `movzx`, `movsx` and `movsxd` from memory to a general register (Intel SDM, volume 2), with REX and operand-size prefix, all
//! addressing modes of 64-bit code but those with a segment register. Everything else is not a plain load here, and its page comes in.

/// General registers in the order of their numbers in instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 ... r15.
pub type Registers = [u64; 16];

/// A plain load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainLoad {
    /// First byte read.
    pub address: usize,
    /// Bytes read: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Bytes of the instruction.
    pub length: u8,
    register: u8,
    signed: bool,
    /// Bytes of the register that are written: 1, 2, 4 (and the upper half is zeroed) or 8.
    width: u8,
    /// The second byte of the register, not the first: ah, ch, dh, bh.
    high: bool,
}

const OPERAND_SIZE: u8 = 0x66;
const REX: u8 = 0x40;

impl PlainLoad {
    /// The instruction at `ip`, whose bytes `code` gives one by one from 0 on; asked for no more than the instruction has.
    pub fn decode(code: impl Fn(usize) -> u8, ip: usize, registers: &Registers) -> Option<PlainLoad> {
        let mut at = 0;
        let mut next = || {
            at += 1;
            code(at - 1)
        };
        let (mut byte, mut short, mut rex) = (next(), false, 0);
        if byte == OPERAND_SIZE {
            (short, byte) = (true, next());
        }
        if byte & 0xf0 == REX {
            (rex, byte) = (byte, next());
        }
        let wide = rex & 8 != 0;
        let full = if wide {
            8
        } else if short {
            2
        } else {
            4
        };
        let (bytes, width, signed) = match byte {
            0x8a => (1, 1, false),
            0x8b => (full, full, false),
            0x63 if wide => (4, 8, true),
            0x0f => match next() {
                0xb6 => (1, full, false),
                0xb7 => (2, full, false),
                0xbe => (1, full, true),
                0xbf => (2, full, true),
                _ => return None,
            },
            _ => return None,
        };
        let mod_rm = next();
        let (mode, rm) = (mod_rm >> 6, mod_rm & 7);
        let mut relative = false;
        let mut address = 0_u64;
        let mut displacement = match mode {
            0 => 0,
            1 => 1,
            2 => 4,
            _ => return None,
        };
        let register_of = |low: u8, bit: u8| registers[usize::from(low | (rex & bit != 0) as u8 * 8)];
        match (rm, mode) {
            (4, _) => {
                let sib = next();
                let (index, base) = (sib >> 3 & 7, sib & 7);
                if index != 4 || rex & 2 != 0 {
                    address = register_of(index, 2) << (sib >> 6);
                }
                if base == 5 && mode == 0 {
                    displacement = 4;
                } else {
                    address = address.wrapping_add(register_of(base, 1));
                }
            }
            (5, 0) => (relative, displacement) = (true, 4),
            _ => address = register_of(rm, 1),
        }
        let mut offset = [0; 4];
        (0..displacement).for_each(|i| offset[i] = next());
        let offset = match displacement {
            0 => 0,
            1 => i64::from(offset[0] as i8),
            _ => i64::from(i32::from_le_bytes(offset)),
        };
        let length = at as u8;
        if relative {
            address = (ip as u64).wrapping_add(u64::from(length));
        }
        let register = mod_rm >> 3 & 7 | (rex & 4) << 1;
        let high = width == 1 && rex == 0 && register >= 4;
        Some(PlainLoad {
            address: address.wrapping_add(offset as u64) as usize,
            bytes,
            length,
            register: if high { register - 4 } else { register },
            signed,
            width,
            high,
        })
    }

    /// The number of the register that is written.
    pub fn register(&self) -> usize {
        usize::from(self.register)
    }

    /// What the register holds afterwards, that had `before`: the bytes read are the lowest of `value`, with zeros above.
    pub fn result(&self, value: u64, before: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.bytes);
        let value = if self.signed { ((value << unused) as i64 >> unused) as u64 } else { value };
        match self.width {
            8 => value,
            4 => value & 0xffff_ffff,
            2 => before & !0xffff | value & 0xffff,
            _ if self.high => before & !0xff00 | (value & 0xff) << 8,
            _ => before & !0xff | value & 0xff,
        }
    }
}
