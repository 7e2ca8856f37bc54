//! What decides reads its numbers from `limits.rs`, where each stands with its unit, range and experiment.

use super::Finding;
use super::source::Source;

/// Everything that decides.
const POLICY: &str = "crates/weir/src/policy/";
/// Numbers that steer nothing: none, one, both, and per cent.
const NEUTRAL: &[&str] = &["0", "1", "2", "100", "0.0", "1.0", "2.0", "100.0"];

/// Finds numbers in one file of the policy folder, tests not counted.
pub fn check(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with(POLICY) || source.path.ends_with("/limits.rs") {
        return Vec::new();
    }
    let found =
        numbers(&source.product).into_iter().filter(|(_, number)| !NEUTRAL.contains(&number.as_str()));
    found
        .map(|(offset, number)| {
            let what = format!("the number {number} belongs into limits.rs, with its unit and experiment");
            Finding::new(&source.path, source.line_of(offset), what)
        })
        .collect()
}

/// Literals with their offsets, without `_` and type. Fields of tuples (`.0`) and digits in names are none.
fn numbers(code: &str) -> Vec<(usize, String)> {
    let bytes = code.as_bytes();
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let starts = bytes[at].is_ascii_digit() && (at == 0 || !is_word(bytes[at - 1]));
        if !starts {
            at += 1;
            continue;
        }
        let field = at > 0 && bytes[at - 1] == b'.' && (at < 2 || bytes[at - 2] != b'.');
        let mut end = at;
        while end < bytes.len() && (is_word(bytes[end]) || is_point(bytes, end)) {
            end += 1;
        }
        if !field {
            found.push((at, plain(&code[at..end])));
        }
        at = end;
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A point inside a number, not the two of a range and not that of a method.
fn is_point(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
}

fn plain(literal: &str) -> String {
    let literal = literal.replace('_', "");
    let kinds =
        ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64"];
    let kind = kinds.iter().find(|kind| literal.ends_with(*kind) && !literal.starts_with("0x"));
    kind.map_or(literal.clone(), |kind| literal[..literal.len() - kind.len()].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn numbers_that_steer_are_found_in_the_policy_folder_alone() {
        let text = "fn f(a: u64) -> bool { a > 17 || a * 3_000u64 < 0x2f || (0..64).len() as f64 > 2.5 }";
        let found_there = found("crates/weir/src/policy/victims.rs", text);
        let numbers = ["17", "3000", "0x2f", "64", "2.5"];
        assert_eq!(found_there.len(), numbers.len(), "{found_there:?}");
        assert!(
            found_there.iter().zip(numbers).all(|(what, number)| what.contains(&format!("number {number} ")))
        );
        assert_eq!(found("crates/weir/src/limits.rs", text), Vec::<String>::new());
        assert_eq!(found("crates/weir/src/policy/limits.rs", text), Vec::<String>::new());
    }

    #[test]
    fn neutral_numbers_fields_names_and_tests_pass() {
        let text = "fn f(a: (u8, u64)) { g2(a.0, a.1 + 1, b / 2, 100 * c) }\n#[cfg(test)]\nmod tests { \
            const A: u8 = 9; }";
        assert_eq!(found("crates/weir/src/policy/victims.rs", text), Vec::<String>::new());
    }
}
