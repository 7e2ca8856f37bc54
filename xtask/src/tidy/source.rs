//! A Rust file as the checks see it: comments and literals blanked, test modules known.

/// A Rust source file. Offsets in `text`, `code` and `product` agree: blanked bytes became spaces.
pub struct Source {
    /// Path relative to the root.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// Without comments and without the insides of string and character literals.
    pub code: String,
    /// `code` without `#[cfg(test)]` modules; empty when the whole file is a test.
    pub product: String,
}

impl Source {
    /// Reads nothing: `text` is the contents of the file at `path`.
    pub fn new(path: &str, text: &str) -> Self {
        let code = blank_literals(text);
        let product = if is_test_file(path) { blanked(&code) } else { blank_tests(&code) };
        Self { path: path.into(), text: text.into(), code, product }
    }

    /// Treats the whole file as a test: its module is declared under `#[cfg(test)]`.
    pub fn into_test(mut self) -> Self {
        self.product = blanked(&self.code);
        self
    }

    /// Paths (without `.rs`) of the modules that this file declares under a `cfg` that names `test`.
    pub fn test_modules(&self) -> Vec<String> {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let own = file.trim_end_matches(".rs");
        let below =
            if matches!(own, "mod" | "lib" | "main") { folder.into() } else { format!("{folder}/{own}") };
        let attributes = test_attributes(&self.code).into_iter();
        let heads = attributes.filter_map(|(_, end)| {
            let rest = item_behind(&self.code, end)?;
            let head = &rest[..rest.find(['{', ';'])?];
            let name = head.trim().rsplit_once("mod ")?.1.trim();
            rest[head.len()..].starts_with(';').then(|| format!("{below}/{name}"))
        });
        heads.collect()
    }

    /// Line number, from 1, of a byte offset.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    /// What is in `code` but not in `product`: the tests.
    pub fn tests(&self) -> String {
        let bytes = self.code.bytes().zip(self.product.bytes());
        let kept = bytes.map(|(code, product)| if code == product && code != b'\n' { b' ' } else { code });
        String::from_utf8_lossy(&kept.collect::<Vec<_>>()).into_owned()
    }
}

/// Whether a file holds only tests: below a `tests` or `loom` folder, or named `tests.rs`, `loom*.rs`.
pub fn is_test_file(path: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    folders.split('/').any(|folder| folder == "tests" || folder == "loom" || folder == "benches")
        || name == "tests.rs"
        || name.starts_with("loom")
}

/// Offsets at which `word` stands alone (no identifier characters around it).
pub fn word_offsets(code: &str, word: &str) -> Vec<usize> {
    let part_of_name =
        |byte: Option<&u8>| byte.is_some_and(|&byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let bytes = code.as_bytes();
    let ends_in_name = part_of_name(word.as_bytes().last());
    let starts_in_name = part_of_name(word.as_bytes().first());
    let found = code.match_indices(word).map(|(offset, _)| offset);
    found
        .filter(|&offset| !(starts_in_name && offset > 0 && part_of_name(bytes.get(offset - 1))))
        .filter(|&offset| !(ends_in_name && part_of_name(bytes.get(offset + word.len()))))
        .collect()
}

/// The offset behind the brace that closes the one at `open`, or the end.
pub fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn blanked(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// Replaces comments and the insides of literals by spaces, byte for byte.
fn blank_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end == at {
            kept.push(if bytes[at].is_ascii() { bytes[at] } else { b' ' });
            at += 1;
            continue;
        }
        kept.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none begins there.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_name = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => find(bytes, at, b"\n").unwrap_or(bytes.len()),
        [b'/', b'*', ..] => block_comment_end(bytes, at),
        [b'"', ..] => quoted_end(bytes, at + 1, b'"'),
        [b'r' | b'b' | b'c', ..] if !after_name => raw_string_end(bytes, at).unwrap_or(at),
        [b'\'', b'\\', ..] => quoted_end(bytes, at + 1, b'\''),
        // 'x' is a character, 'x without a closing quote a lifetime.
        [b'\'', ..] => character_end(bytes, at).unwrap_or(at),
        _ => at,
    }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes[from..].windows(what.len()).position(|window| window == what).map(|found| from + found)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0usize, start);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(bytes.len())
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The end of `r"..."`, `r#"..."#`, `br"..."`, `cr"..."`; none when no raw string begins at `start`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let prefix = if bytes[start] == b'r' { 1 } else { 2 };
    if bytes.get(start + prefix - 1) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[start + prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let open = start + prefix + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.extend(std::iter::repeat_n(b'#', hashes));
    Some(find(bytes, open + 1, &close).map_or(bytes.len(), |found| found + close.len()))
}

fn character_end(bytes: &[u8], start: usize) -> Option<usize> {
    let text = std::str::from_utf8(&bytes[start + 1..(start + 6).min(bytes.len())])
        .or_else(|error| std::str::from_utf8(&bytes[start + 1..start + 1 + error.valid_up_to()]))
        .ok()?;
    let length = text.chars().next()?.len_utf8();
    (bytes.get(start + 1 + length) == Some(&b'\'')).then_some(start + length + 2)
}

/// Start and end of each `cfg` attribute that names `test`.
fn test_attributes(code: &str) -> Vec<(usize, usize)> {
    let starts = code.match_indices("#[cfg(").map(|(start, _)| start);
    let spans = starts.filter_map(|start| Some((start, start + code[start..].find(']')? + 1)));
    let names_test =
        |attribute: &str| !word_offsets(attribute, "test").is_empty() && !attribute.contains("not(test");
    spans.filter(|&(start, end)| names_test(&code[start..end])).collect()
}

/// The text from the item on that the attribute ending at `from` belongs to, behind further attributes.
fn item_behind(code: &str, from: usize) -> Option<&str> {
    let mut rest = code[from..].trim_start();
    while rest.starts_with("#[") {
        rest = rest[rest.find(']')? + 1..].trim_start();
    }
    Some(rest)
}

/// Blanks inline modules behind a `cfg` attribute that names `test`.
fn blank_tests(code: &str) -> String {
    let mut kept = code.as_bytes().to_vec();
    for (start, end) in test_attributes(code) {
        let Some(open) = module_brace(code, end) else { continue };
        for byte in &mut kept[start..closing_brace(code, open)] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The opening brace of the inline module that the attribute ending at `from` belongs to.
fn module_brace(code: &str, from: usize) -> Option<usize> {
    let rest = item_behind(code, from)?;
    let head = &rest[..rest.find(['{', ';'])?];
    let is_module = !word_offsets(head, "mod").is_empty() && rest[head.len()..].starts_with('{');
    is_module.then(|| code.len() - rest.len() + head.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let text = "a // unsafe\n/* unsafe /* nested */ */ b \"unsafe \\\" \" r#\"unsafe \" \"# '\\'' '\"' \
            'x' &'a c é\n";
        let source = Source::new("x.rs", text);
        assert_eq!(source.code.len(), text.len());
        assert_eq!(source.code.matches('\n').count(), 2);
        assert!(!source.code.contains("unsafe"));
        assert!(source.code.contains("&'a c"), "{}", source.code);
        assert!(source.code.contains('b'));
    }

    #[test]
    fn strings_over_several_lines_and_byte_strings_are_blanked() {
        let source = Source::new(
            "x.rs",
            "let a = b\"todo\"; let s = \"one\ntodo\"; let n = br##\"todo\"# todo\"##; end",
        );
        assert!(!source.code.contains("todo"), "{}", source.code);
        assert!(source.code.contains("end"));
    }

    #[test]
    fn test_modules_are_not_product_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { if x { } }\n}\nfn c() {}\n";
        let source = Source::new("x.rs", text);
        assert!(source.product.contains("fn a") && source.product.contains("fn c"));
        assert!(!source.product.contains("fn b"));
        assert!(source.tests().contains("fn b") && !source.tests().contains("fn a"));
    }

    #[test]
    fn combined_cfg_is_a_test_module_and_not_test_is_not() {
        let loom =
            Source::new("x.rs", "#[cfg(all(loom, test))]\n#[path = \"y\"]\npub(crate) mod m { fn b() {} }");
        assert!(!loom.product.contains("fn b"));
        let product = Source::new("x.rs", "#[cfg(not(test))]\nmod m { fn b() {} }");
        assert!(product.product.contains("fn b"));
    }

    #[test]
    fn modules_declared_for_tests_are_named_by_path() {
        let text = "#[cfg(all(test, not(loom)))]\nmod sim;\nmod real;\n#[cfg(test)]\nmod inline { }\n";
        assert_eq!(Source::new("crates/weir/src/lib.rs", text).test_modules(), ["crates/weir/src/sim"]);
        assert_eq!(
            Source::new("a/fault.rs", "#[cfg(test)] pub(crate) mod fakes;").test_modules(),
            ["a/fault/fakes"]
        );
        assert!(Source::new("a/sim.rs", "fn f() {}").into_test().product.trim().is_empty());
    }

    #[test]
    fn test_files_have_no_product_code() {
        for path in
            ["crates/weir/tests/kernel.rs", "crates/weir/src/page/tests.rs", "crates/weir/src/page/loom.rs"]
        {
            assert!(Source::new(path, "fn a() {}").product.trim().is_empty(), "{path}");
        }
        assert!(!Source::new("crates/weir/src/page/state.rs", "fn a() {}").product.trim().is_empty());
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(word_offsets("unsafe_code unsafe xunsafe", "unsafe"), vec![12]);
        assert_eq!(word_offsets("eprintln!() println!()", "println!"), vec![12]);
    }
}
