//! Archives whose bytes depend on their files alone: the order is that of the paths, owner and
//! group are root, and all times are the commit's.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::files::{Content, Entry};

/// Packs files, with the folders above them.
pub(crate) fn tar(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    let mut folders = BTreeSet::new();
    for entry in entries {
        for (end, _) in entry.path.match_indices('/').filter(|(end, _)| *end > 0) {
            folders.insert(format!("{}/", &entry.path[..end]));
        }
    }
    let mut all: Vec<(&str, Option<&Entry>)> =
        folders.iter().map(|folder| (folder.as_str(), None)).collect();
    all.extend(entries.iter().map(|entry| (entry.path.as_str(), Some(entry))));
    all.sort_by_key(|(path, _)| *path);
    let mut archive = Builder::new(Vec::new());
    for (path, entry) in all {
        let mut header = Header::new_gnu();
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_size(0);
        header.set_mode(0o755);
        // Names in archives are relative.
        let path = path.trim_start_matches('/');
        match entry.map(|entry| &entry.content) {
            None => {
                header.set_entry_type(EntryType::Directory);
                archive.append_data(&mut header, path, std::io::empty())?;
            }
            Some(Content::Link(target)) => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                archive.append_link(&mut header, path, target)?;
            }
            Some(Content::File { bytes, mode }) => {
                header.set_mode(*mode);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice())?;
            }
            Some(Content::Configuration(bytes)) => {
                header.set_mode(0o644);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice())?;
            }
        }
    }
    Ok(archive.into_inner()?)
}

/// Compresses bytes, without a name and a time.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packed.write_all(bytes)?;
    Ok(packed.finish()?)
}
