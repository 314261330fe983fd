//! Numbers in the text files of `/proc` and of cgroups.

/// The bytes of a line like `MemTotal:  24684092 kB`.
pub(super) fn kib_field(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.checked_mul(1024)
}

/// The number after `key`, which is a whole word at the start of a line.
pub(super) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_whole_words() {
        let text =
            "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:\t2 kB\nHugePages: x\n";
        assert_eq!(kib_field(text, "MemTotal:"), Some(24_684_092 * 1024));
        assert_eq!(kib_field(text, "MemAvailable:"), Some(2048));
        assert_eq!(kib_field(text, "Mem"), None);
        assert_eq!(kib_field(text, "HugePages:"), None);
        assert_eq!(
            kib_field("MemTotal: 18446744073709551615 kB", "MemTotal:"),
            None
        );
    }
}
