//! What `cgpu-runtime` records of a container beside its region, as far as users see it. The
//! container can write anything there.

use std::io::Read;
use std::path::Path;

use cgpu_shm::regular_file;
use serde::Deserialize;

/// The file in the container's directory.
const RECORD: &str = "container";
/// Greatest length read of a container's file, in bytes.
const MAX_TEXT: u64 = 64 << 10;

#[derive(Deserialize)]
struct Record {
    image: Option<String>,
}

/// Returns the name of the container's image, if it was recorded.
#[must_use]
pub fn image(dir: &Path) -> Option<String> {
    let record: Record = serde_json::from_str(&read_text(&dir.join(RECORD))?).ok()?;
    record.image.filter(|image| !image.is_empty())
}

/// A container's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct FirstProcess {
    /// Its number.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub started: u64,
    /// Inode of the PID namespace that the number is of; 0: not known.
    #[serde(default)]
    pub namespace: u64,
}

/// Returns the container's first process, if it was recorded.
#[must_use]
pub fn first_process(dir: &Path) -> Option<FirstProcess> {
    #[derive(Deserialize)]
    struct Record {
        first: FirstProcess,
    }
    let record: Record = serde_json::from_str(&read_text(&dir.join(RECORD))?).ok()?;
    Some(record.first)
}

/// Returns the names of the shares whose containers have this directory; none: it is that of one
/// container, which has no share.
#[must_use]
pub fn shares(dir: &Path) -> Vec<String> {
    #[derive(Deserialize)]
    struct Record {
        #[serde(default)]
        shares: Vec<String>,
    }
    let text = read_text(&dir.join(RECORD)).unwrap_or_default();
    serde_json::from_str(&text).map(|record: Record| record.shares).unwrap_or_default()
}

/// Returns the text of a container's file. The file may be anything: links are not followed, FIFOs
/// are not waited for.
#[must_use]
pub fn read_text(path: &Path) -> Option<String> {
    let file = regular_file::open_no_follow(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_process_is_reported_where_it_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let first_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            first_process(folder.path())
        };
        let first = FirstProcess { pid: 1, started: 2, namespace: 3 };
        assert_eq!(
            first_of(r#"{"bundle":"/b","first":{"pid":1,"started":2,"namespace":3}}"#),
            Some(first)
        );
        for text in [r#"{"bundle":"/b"}"#, r#"{"first":null}"#, r#"{"first":{"pid":-1}}"#, ""] {
            assert_eq!(first_of(text), None, "{text}");
        }
    }

    #[test]
    fn shares_are_those_that_were_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let shares_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            shares(folder.path())
        };
        assert_eq!(shares_of(r#"{"bundle":"/b","shares":["u-0","u-1"]}"#), ["u-0", "u-1"]);
        for text in [r#"{"bundle":"/b"}"#, r#"{"shares":7}"#, ""] {
            assert!(shares_of(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn image_is_reported_where_it_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let image_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            image(folder.path())
        };
        assert_eq!(image(folder.path()), None);
        assert_eq!(
            image_of(r#"{"bundle":"/b","image":"local/cuda","first":{"pid":1,"started":2}}"#)
                .as_deref(),
            Some("local/cuda")
        );
        for text in [r#"{"bundle":"/b"}"#, r#"{"image":""}"#, r#"{"image":7}"#, "[]", ""] {
            assert_eq!(image_of(text), None, "{text}");
        }
    }
}
