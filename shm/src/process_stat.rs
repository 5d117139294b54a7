//! A process's line in `/proc/PID/stat`. The process chooses its name, which may be any bytes.

/// What the kernel says of a process that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat<'a> {
    /// Its name.
    pub comm: &'a [u8],
    /// Process id of its parent.
    pub parent: u32,
    /// Its start time, in clock ticks since boot: tells it from a later process of its number.
    pub start_time: u64,
    /// Whether its main thread has exited. Others go on.
    pub has_exited: bool,
}

impl<'a> ProcessStat<'a> {
    /// Parses the line. None: the process has ended, with all of its threads, or the line is none.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        // The name is in brackets and may contain brackets.
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        let comm = line.get(open + 1..close)?;
        let rest = core::str::from_utf8(line.get(close + 1..)?).ok()?;
        let field = |number: usize| rest.split_whitespace().nth(number - 3);
        let has_exited = matches!(field(3), Some("Z" | "X"));
        let threads: u64 = field(20)?.parse().ok()?;
        if has_exited && threads <= 1 {
            return None;
        }
        let (parent, start_time) = (field(4)?.parse().ok()?, field(22)?.parse().ok()?);
        Some(Self { comm, parent, start_time, has_exited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_may_be_any_bytes() {
        let rest = "S 41 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1";
        let line = |name: &[u8], rest: &str| [b"42 (", name, b") ", rest.as_bytes()].concat();
        for name in [&b"sleep"[..], b"a) b (c\n", b"\xff) Z 1", b""] {
            let line = line(name, rest);
            let expected =
                ProcessStat { comm: name, parent: 41, start_time: 987_654, has_exited: false };
            assert_eq!(ProcessStat::parse(&line), Some(expected));
        }
        for text in ["", "42", "42 (", "42 )(", "42 (x)", "42 (x) S", "42 (x) Z 1"] {
            assert_eq!(ProcessStat::parse(text.as_bytes()), None, "{text}");
        }
        let zombie = rest.replacen('S', "Z", 1);
        assert_eq!(ProcessStat::parse(&line(b"x", &zombie)), None);
        // Its main thread has exited, and another one has not.
        let threads = zombie.replace(" 20 0 1 ", " 20 0 2 ");
        assert!(ProcessStat::parse(&line(b"x", &threads)).unwrap().has_exited);
    }
}
