//! Standard output. A reader who has seen enough (`| head`) is no failure; a disk that is full is one. `println!` would panic at both.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Whether anybody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Listens,
    Left,
}

/// Writes what a command answers.
///
/// # Errors
/// It cannot be written, for another reason than that nobody reads.
pub(crate) fn tell(text: impl Display) -> Result<Reader> {
    tell_to(&mut io::stdout().lock(), text)
}

fn tell_to(out: &mut impl Write, text: impl Display) -> Result<Reader> {
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Listens),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(error) => Err(error).context("cannot write the answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails as it is told.
    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_reader_who_has_left_is_no_failure() {
        let mut all = Vec::new();
        assert_eq!(tell_to(&mut all, "text\n").unwrap(), Reader::Listens);
        assert_eq!(all, b"text\n");
        assert_eq!(tell_to(&mut Broken(ErrorKind::BrokenPipe), "text\n").unwrap(), Reader::Left);
        assert!(tell_to(&mut Broken(ErrorKind::StorageFull), "text\n").is_err());
    }
}
