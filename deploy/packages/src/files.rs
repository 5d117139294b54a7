//! The table of installed files, which is in `deploy/files.sh`, and the files themselves.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::pages;

/// A file of a package or an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The absolute path of an installed file, the relative one of a file in an archive.
    pub path: String,
    /// What is there.
    pub content: Content,
}

/// The content of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with its permissions.
    File {
        /// All of it.
        bytes: Vec<u8>,
        /// The permissions.
        mode: u32,
    },
    /// A file that the host's administrator changes, and that no upgrade replaces.
    Configuration(Vec<u8>),
    /// A symbolic link with its target.
    Link(String),
}

impl Entry {
    pub(crate) fn file(path: impl Into<String>, bytes: impl Into<Vec<u8>>, mode: u32) -> Self {
        Self { path: path.into(), content: Content::File { bytes: bytes.into(), mode } }
    }
}

/// A line of the table.
#[derive(Debug)]
pub struct Line {
    /// The file, below the folder of built files or the sources.
    pub from: String,
    /// Its absolute path.
    pub place: String,
    /// Its permissions.
    pub mode: u32,
}

/// The folder of `deploy/files.sh` and the sources of scripts and pages.
pub struct Sources<'a>(pub &'a Path);

impl Sources<'_> {
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.0.join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    pub(crate) fn text(&self, name: &str) -> Result<String> {
        String::from_utf8(self.read(name)?).with_context(|| format!("{name} is not UTF-8"))
    }

    /// Returns the lines of the here-document in a function of `deploy/files.sh`.
    fn list(&self, function: &str) -> Result<Vec<Vec<String>>> {
        let text = self.text("deploy/files.sh")?;
        let begin = format!("{function}() {{\n    cat <<'END'\n");
        let list = text.split_once(&begin).and_then(|(_, rest)| rest.split_once("END\n"));
        let (list, _) = list.with_context(|| format!("deploy/files.sh has no list {function}"))?;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        Ok(list.lines().map(words).collect())
    }

    /// Returns the table of installed files.
    pub fn table(&self) -> Result<Vec<Line>> {
        let line = |words: Vec<String>| match <[String; 3]>::try_from(words) {
            Ok([from, place, mode]) => {
                let mode = u32::from_str_radix(&mode, 8)
                    .with_context(|| format!("{place}: the mode is {mode}"))?;
                Ok(Line { from, place, mode })
            }
            Err(words) => {
                anyhow::bail!("deploy/files.sh: expected FILE PLACE MODE, found {words:?}")
            }
        };
        self.list("files")?.into_iter().map(line).collect()
    }

    /// Returns second names of programs: NAME and PROGRAM.
    pub fn links(&self) -> Result<Vec<(String, String)>> {
        let pair = |words: Vec<String>| match <[String; 2]>::try_from(words) {
            Ok([name, program]) => Ok((name, program)),
            Err(words) => anyhow::bail!("deploy/files.sh: expected NAME PROGRAM, found {words:?}"),
        };
        self.list("links")?.into_iter().map(pair).collect()
    }
}

/// Returns whether a file of the table is one of the sources.
pub(crate) fn is_source(file: &str) -> bool {
    ["deploy/", "docs/", "LICENSE"].iter().any(|start| file.starts_with(start))
}

/// The files of a release for one machine.
pub(crate) struct Files<'a> {
    sources: &'a Sources<'a>,
    built: &'a Path,
    pages: Vec<(String, Vec<u8>)>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(sources: &'a Sources<'a>, built: &'a Path) -> Result<Self> {
        Ok(Self { sources, built, pages: pages::all()? })
    }

    /// Reads a file by its name in the table.
    pub(crate) fn read(&self, from: &str) -> Result<Vec<u8>> {
        if is_source(from) {
            return self.sources.read(from);
        }
        if let Some(name) = from.strip_prefix("share/") {
            let page = self.pages.iter().find(|(page, _)| page == name);
            return Ok(page.with_context(|| format!("there is no {from}"))?.1.clone());
        }
        let path = self.built.join(from);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Returns what packages install, in the order of paths.
    pub(crate) fn installed(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for line in self.sources.table()? {
            entries.push(Entry::file(line.place, self.read(&line.from)?, line.mode));
        }
        for (name, program) in self.sources.links()? {
            let path = format!("/usr/bin/{name}");
            entries.push(Entry { path, content: Content::Link(program) });
        }
        let functions = self.read("deploy/files.sh")?;
        entries.push(Entry::file("/usr/lib/cgpu/files.sh", functions, 0o644));
        entries.push(Entry {
            path: "/etc/cgpu/monitor.toml".to_owned(),
            content: Content::Configuration(self.read("deploy/monitor.toml")?),
        });
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }
}
