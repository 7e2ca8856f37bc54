//! What decides has no numbers of its own: they stand in `limits.rs`, each with its experiment.

use super::Finding;
use super::source::Source;

const POLICY: &str = "crates/weir/src/policy/";
/// Arithmetic, not policy.
const FREE: &[&str] = &["0", "1", "2"];

/// Finds numbers in the code of the policy that steer.
pub fn check(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with(POLICY) {
        return Vec::new();
    }
    let found = numbers(&source.product).into_iter().filter(|(_, number)| !FREE.contains(number));
    found
        .map(|(offset, number)| {
            let what =
                format!("the number {number} belongs into limits.rs, with its unit and its experiment");
            Finding::new(&source.path, source.line_of(offset), what)
        })
        .collect()
}

/// The literals of some code, with their offsets; their types left out.
fn numbers(code: &str) -> Vec<(usize, &str)> {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let (bytes, mut found, mut at) = (code.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let end = at + bytes[at..].iter().take_while(|byte| part(**byte)).count();
        // A field of a tuple is no number.
        let field = at > 0 && bytes[at - 1] == b'.' && (at < 2 || bytes[at - 2] != b'.');
        if bytes[at].is_ascii_digit() && !field {
            let word = &code[at..end];
            let typed = if word.starts_with("0x") { None } else { word.find(['u', 'i', 'f']) };
            found.push((at, word[..typed.unwrap_or(word.len())].trim_end_matches('_')));
        }
        at = end.max(at + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        lines_of(check, path, text)
    }

    #[test]
    fn numbers_of_the_policy_are_found_but_for_arithmetic_fields_names_and_tests() {
        let text = "const A: u32 = 3;\nlet b = x.0 * 2 + pair.7;\nlet c = 1u64 << u32::BITS; // 99\nlet d = \
            0..64;\nlet e = 0x2;\n\
                    #[cfg(test)]\nmod tests { const F: u32 = 9; }\n";
        assert_eq!(lines("crates/weir/src/policy/victims.rs", text), [1, 4, 5]);
        assert_eq!(lines("crates/weir/src/limits.rs", text), Vec::<usize>::new());
    }
}
