//! Standard output. A closed pipe (`| head`) is no failure; a full disk is. `println!` would panic
//! at both.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Whether the output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Open,
    Closed,
}

/// Writes a command's output.
///
/// # Errors
/// The output cannot be written, for another reason than a closed pipe.
pub(crate) fn write(text: impl Display) -> Result<Reader> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(out: &mut impl Write, text: impl Display) -> Result<Reader> {
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Open),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Closed),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that fails with this error.
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
    fn write_to_closed_pipe_is_no_failure() {
        let mut all = Vec::new();
        assert_eq!(write_to(&mut all, "text\n").unwrap(), Reader::Open);
        assert_eq!(all, b"text\n");
        assert_eq!(write_to(&mut Broken(ErrorKind::BrokenPipe), "text\n").unwrap(), Reader::Closed);
        assert!(write_to(&mut Broken(ErrorKind::StorageFull), "text\n").is_err());
    }
}
