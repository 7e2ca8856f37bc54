//! Loads, decoded: which bytes an instruction reads and what it does with them, so that it can be done
//! without the page being mapped.
//!
//! Known are instructions that read one operand from memory, write general registers and flags at most, and
//! are what compilers make of array accesses: `mov`, `movzx`, `movsx` and `movsxd`; `add`, `or`, `and`, `sub`
//! and `xor` of memory to a register; `cmp` and `test` (Intel SDM, volume 2), with REX and operand-size
//! prefix, in all addressing modes of 64-bit code but those with a segment register. Any other is no load
//! here, and its page comes in.

/// General registers in the order of their numbers in instructions (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
/// r8 ... r15), and the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The general registers.
    pub general: [u64; 16],
    /// The flags, `rflags`.
    pub flags: u64,
}

/// An instruction that loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// First byte read.
    pub address: usize,
    /// Bytes read: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Bytes of the instruction.
    pub length: u8,
    action: Action,
    operand: Operand,
}

/// What is done with the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// It goes into the register, with zeros above it.
    Move,
    /// The same with its sign above.
    MoveSigned,
    /// The register and the value are combined; the result goes into the register.
    Combine(Operation),
    /// Only the flags are set.
    Compare(Operation, Order),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Or,
    And,
    Subtract,
    Xor,
}

/// Which operand is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    MemoryFirst,
    MemoryLast,
}

/// The other operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Register(Register),
    Value(u64),
}

/// A register, or part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Register {
    number: u8,
    /// Its bytes: 1, 2, 4 (writing zeroes the upper half) or 8.
    width: u8,
    /// The second byte, not the first: ah, ch, dh, bh.
    high: bool,
}

const OPERAND_SIZE: u8 = 0x66;
const REX: u8 = 0x40;
/// Bits of the REX prefix.
const WIDE: u8 = 8;
const REGISTER: u8 = 4;
const INDEX: u8 = 2;
const BASE: u8 = 1;

/// Prefixes of an instruction, and its bytes as far as they have been read.
struct Reader<C> {
    code: C,
    at: usize,
    short: bool,
    rex: u8,
}

impl<C: Fn(usize) -> u8> Reader<C> {
    fn next(&mut self) -> u8 {
        self.at += 1;
        (self.code)(self.at - 1)
    }

    /// A signed number of 1, 2 or 4 bytes.
    fn number(&mut self, bytes: u8) -> i64 {
        let value = (0..bytes).fold(0_u64, |value, i| value | u64::from(self.next()) << (8 * i));
        extended(value, bytes) as i64
    }

    /// The register with these low bits in the instruction and this bit in its prefix.
    fn numbered(&self, low: u8, bit: u8) -> usize {
        usize::from(low & 7) | if self.rex & bit == 0 { 0 } else { 8 }
    }

    /// Bytes of an operand that is not one byte.
    fn width(&self) -> u8 {
        match (self.rex & WIDE != 0, self.short) {
            (true, _) => 8,
            (_, true) => 2,
            _ => 4,
        }
    }

    /// The register that the middle bits name.
    fn register(&self, mod_rm: u8, width: u8) -> Register {
        let number = self.numbered(mod_rm >> 3, REGISTER) as u8;
        let high = width == 1 && self.rex == 0 && number >= 4;
        Register { number: if high { number - 4 } else { number }, width, high }
    }
}

/// An operand in memory: a sum, and whether the address of the next instruction belongs to it.
struct Place {
    sum: u64,
    relative: bool,
}

impl Place {
    fn read<C: Fn(usize) -> u8>(r: &mut Reader<C>, mod_rm: u8, general: &[u64; 16]) -> Option<Place> {
        let (mode, low) = (mod_rm >> 6, mod_rm & 7);
        let mut place = Place { sum: 0, relative: false };
        let mut displacement = match mode {
            0 => 0,
            1 => 1,
            2 => 4,
            _ => return None, // a register
        };
        match (low, mode) {
            (4, _) => {
                let sib = r.next();
                let (index, base) = (r.numbered(sib >> 3, INDEX), sib & 7);
                if index != 4 {
                    place.sum = general[index] << (sib >> 6);
                }
                if base == 5 && mode == 0 {
                    displacement = 4;
                } else {
                    place.sum = place.sum.wrapping_add(general[r.numbered(base, BASE)]);
                }
            }
            (5, 0) => (place.relative, displacement) = (true, 4),
            _ => place.sum = general[r.numbered(low, BASE)],
        }
        place.sum = place.sum.wrapping_add(r.number(displacement) as u64);
        Some(place)
    }
}

impl Load {
    /// The instruction at `ip`, whose bytes `code` gives one by one from 0 on; asked for no more than the
    /// instruction has.
    pub fn decode(code: impl Fn(usize) -> u8, ip: usize, registers: &Registers) -> Option<Load> {
        let mut r = Reader { code, at: 0, short: false, rex: 0 };
        let mut opcode = r.next();
        if opcode == OPERAND_SIZE {
            (r.short, opcode) = (true, r.next());
        }
        if opcode & 0xf0 == REX {
            (r.rex, opcode) = (opcode, r.next());
        }
        let full = r.width();
        let odd = if opcode & 1 == 0 { 1 } else { full };
        let (bytes, width, action) = match opcode {
            0x8a | 0x8b => (odd, odd, Action::Move),
            0x63 if full == 8 => (4, 8, Action::MoveSigned),
            0x0f => match r.next() {
                0xb6 => (1, full, Action::Move),
                0xb7 => (2, full, Action::Move),
                0xbe => (1, full, Action::MoveSigned),
                0xbf => (2, full, Action::MoveSigned),
                _ => return None,
            },
            0x02 | 0x03 => (odd, odd, Action::Combine(Operation::Add)),
            0x0a | 0x0b => (odd, odd, Action::Combine(Operation::Or)),
            0x22 | 0x23 => (odd, odd, Action::Combine(Operation::And)),
            0x2a | 0x2b => (odd, odd, Action::Combine(Operation::Subtract)),
            0x32 | 0x33 => (odd, odd, Action::Combine(Operation::Xor)),
            0x3a | 0x3b => (odd, odd, Action::Compare(Operation::Subtract, Order::MemoryLast)),
            0x38 | 0x39 | 0x80 | 0x81 | 0x83 => {
                (odd, odd, Action::Compare(Operation::Subtract, Order::MemoryFirst))
            }
            0x84 | 0x85 | 0xf6 | 0xf7 => (odd, odd, Action::Compare(Operation::And, Order::MemoryFirst)),
            _ => return None,
        };
        let mod_rm = r.next();
        let place = Place::read(&mut r, mod_rm, &registers.general)?;
        let operand = match (opcode, mod_rm >> 3 & 7) {
            (0x80 | 0x83, 7) | (0xf6, 0) => Operand::Value(r.number(1) as u64),
            (0x81, 7) | (0xf7, 0) => Operand::Value(r.number(width.min(4)) as u64),
            (0x80 | 0x81 | 0x83 | 0xf6 | 0xf7, _) => return None,
            _ => Operand::Register(r.register(mod_rm, width)),
        };
        let behind = if place.relative { (ip as u64).wrapping_add(r.at as u64) } else { 0 };
        let address = place.sum.wrapping_add(behind) as usize;
        Some(Load { address, bytes, length: r.at as u8, action, operand })
    }

    /// Does it: `value` has the bytes read as its lowest, zeros above. The instruction pointer is the
    /// caller's.
    pub fn finish(&self, value: u64, registers: &mut Registers) {
        let (own, bytes) = (self.operand.value(&registers.general), self.bytes);
        let (operation, first, last) = match self.action {
            Action::Move => return self.operand.write(value, &mut registers.general),
            Action::MoveSigned => {
                return self.operand.write(extended(value, bytes), &mut registers.general);
            }
            Action::Combine(operation) | Action::Compare(operation, Order::MemoryLast) => {
                (operation, own, value)
            }
            Action::Compare(operation, Order::MemoryFirst) => (operation, value, own),
        };
        let (result, flags) = operation.apply(first, last, bytes);
        registers.flags = registers.flags & !ARITHMETIC_FLAGS | flags;
        if let Action::Combine(_) = self.action {
            self.operand.write(result, &mut registers.general);
        }
    }
}

impl Operand {
    fn value(self, general: &[u64; 16]) -> u64 {
        match self {
            Operand::Value(value) => value,
            Operand::Register(r) => general[usize::from(r.number)] >> if r.high { 8 } else { 0 },
        }
    }

    fn write(self, value: u64, general: &mut [u64; 16]) {
        let Operand::Register(r) = self else { return };
        let register = &mut general[usize::from(r.number)];
        *register = match r.width {
            8 => value,
            4 => value & 0xffff_ffff,
            2 => *register & !0xffff | value & 0xffff,
            _ if r.high => *register & !0xff00 | (value & 0xff) << 8,
            _ => *register & !0xff | value & 0xff,
        };
    }
}

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
const ARITHMETIC_FLAGS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

impl Operation {
    /// Result and flags for operands of so many bytes; what lies above them is not looked at.
    fn apply(self, first: u64, last: u64, bytes: u8) -> (u64, u64) {
        let bits = 8 * u32::from(bytes);
        let mask = u64::MAX >> (64 - bits);
        let (first, last) = (first & mask, last & mask);
        let result = mask
            & match self {
                Operation::Add => first.wrapping_add(last),
                Operation::Or => first | last,
                Operation::And => first & last,
                Operation::Subtract => first.wrapping_sub(last),
                Operation::Xor => first ^ last,
            };
        let top = |v: u64| v >> (bits - 1) & 1 == 1;
        let (carry, overflow, adjust) = match self {
            Operation::Add => (result < first, top((first ^ result) & (last ^ result)), true),
            Operation::Subtract => (first < last, top((first ^ last) & (first ^ result)), true),
            // The adjust flag is undefined after these; processors clear it.
            Operation::Or | Operation::And | Operation::Xor => (false, false, false),
        };
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = flag(carry, CARRY)
            | flag((result as u8).count_ones().is_multiple_of(2), PARITY)
            | flag(adjust && (first ^ last ^ result) & 0x10 != 0, ADJUST)
            | flag(result == 0, ZERO)
            | flag(top(result), SIGN)
            | flag(overflow, OVERFLOW);
        (result, flags)
    }
}

/// The lowest `bytes` with their sign above; 0 of none.
fn extended(value: u64, bytes: u8) -> u64 {
    if bytes == 0 {
        return 0;
    }
    let unused = 64 - 8 * u32::from(bytes);
    ((value << unused) as i64 >> unused) as u64
}

#[cfg(test)]
mod tests;
