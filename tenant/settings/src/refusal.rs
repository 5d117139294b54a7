//! Why the shim refuses to start: one message, in `CGPU_DIR/refused` and once on stderr.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

use cgpu_shm::paths::Candidate;

/// A refusal to start. `cuInit` answers `CUDA_ERROR_INVALID_VALUE`; the message says what was expected, what was found and what to
/// do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    message: String,
    /// Where the message may be left, best first.
    places: Vec<Candidate>,
}

impl Refusal {
    /// A refusal with this message; line breaks become blanks.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into().replace(['\n', '\r'], " "), places: Vec::new() }
    }

    /// The same, to be left in the first of `places` that can be written.
    #[must_use]
    pub fn left_in(mut self, places: &[Candidate]) -> Self {
        self.places = places.to_vec();
        self
    }

    /// The message, on one line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to the file `refused` in the container's directory, where there is one to write to, and as one line
    /// to stderr. The only text that the shim ever prints: the caller calls this once per process.
    pub fn announce(&self) {
        // Where it cannot be written, stderr still has it.
        let _ = self.places.iter().any(|place| self.leave(place).is_ok());
        let line = format!("cgpu: {}\n", self.message);
        // SAFETY: the pointer and length are those of `line`, which lives through the call. One write, so that the line stays
        // whole between the writes of other threads; a closed stderr does not matter.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }

    /// Leaves the message in `place`, whose directory is made if need be.
    fn leave(&self, place: &Candidate) -> io::Result<()> {
        let mode = if place.owner.is_some() { 0o700 } else { 0o755 };
        match DirBuilder::new().mode(mode).create(&place.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Where any user may make a directory, another user may have laid one out for us to write through.
        let about = std::fs::symlink_metadata(&place.directory)?;
        if place.owner.is_some_and(|owner| about.uid() != owner || !about.is_dir()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(place.directory.join("refused"))?;
        file.write_all(format!("{}\n", self.message).as_bytes())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
