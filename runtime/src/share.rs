//! Shares of GPUs that a driver of dynamic resource allocation has prepared on this node.
//!
//! A share is a limits file, named after the share. A CDI device names it in the arguments of its
//! hooks, which no author of a pod can write. A container may have several.

use std::io::ErrorKind;
use std::path::Path;

use cgpu_client::share::combined;
use cgpu_shm::limits::Limits;
use cgpu_shm::{paths, regular_file};

use crate::folder::is_plain_name;
use crate::plan::Refusal;

/// Returns the limits of a container with these shares.
///
/// # Errors
/// A share is not prepared, its file cannot be read, or the shares cannot be combined.
pub fn limits(root: &Path, names: &[String]) -> Result<Limits, Refusal> {
    let read: Result<Vec<Limits>, Refusal> = names.iter().map(|name| read(root, name)).collect();
    combined(&read?).map_err(Refusal)
}

fn read(root: &Path, name: &str) -> Result<Limits, Refusal> {
    if !is_plain_name(name) {
        return Err(Refusal(format!("`{}` is no name of a share", name.escape_default())));
    }
    let path = paths::shares(root).join(name);
    let text = regular_file::read_to_string(&path).map_err(|error| {
        Refusal(if error.kind() == ErrorKind::NotFound {
            format!(
                "the share {name} is not prepared on this node: delete the pod, and create it again"
            )
        } else {
            format!("cannot read {}: {error}", path.display())
        })
    })?;
    let limits: Limits =
        text.parse().map_err(|refused| Refusal(format!("{}: {refused}", path.display())))?;
    if limits.gpus.is_empty() {
        return Err(Refusal(format!("{} names no GPU", path.display())));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn share_without_a_valid_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = paths::shares(root.path());
        fs::create_dir(&folder).unwrap();
        let refused = |name: &str| {
            limits(root.path(), &[name.to_owned()]).map(|_| ()).unwrap_err().to_string()
        };
        assert!(refused("absent").contains("absent is not prepared"));
        assert!(refused("../x").contains("no name of a share"));
        for (text, message) in
            [("version 1\nwieght 2\n", "line 2"), ("version 1\n", "names no GPU")]
        {
            fs::write(folder.join("bad"), text).unwrap();
            let refused = refused("bad");
            assert!(refused.contains(message), "{refused}");
        }
        fs::create_dir(folder.join("folder")).unwrap();
        assert!(refused("folder").contains("directory"));
    }
}
