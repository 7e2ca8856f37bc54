//! Sizes as callers have them: a number of bytes, or a text such as `"2GiB"`.

/// Bytes, or a text that `weir run --memory` would take: `"2GiB"`, `"800M"`, `"50%"` (of the machine's or
/// container's RAM). A text that is no size is refused where it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size(String);

impl Size {
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Size {
        Size(text.to_owned())
    }
}

impl From<String> for Size {
    fn from(text: String) -> Size {
        Size(text)
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Size {
        Size(bytes.to_string())
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Size {
        Size(bytes.to_string())
    }
}
