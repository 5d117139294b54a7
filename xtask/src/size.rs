//! `cargo xtask size`: counts the product's Rust tokens. Comments, tests, the simulated GPU and
//! tools do not count, and formatting does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use serde_json::json;

use crate::cargo::Workspace;
use crate::sources;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Count this copy of the sources
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Top folders that are not part of the product.
const OTHERS: &[&str] = &["sim", "tests", "bench", "xtask", "fuzz"];
/// Folders of a package that are not built into it.
const BESIDE: &[&str] = &["tests", "examples", "benches"];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = arguments.root.clone().map_or_else(|| Workspace::find().map(|one| one.root), Ok)?;
    let folders = measure(&root)?;
    let sum: usize = folders.values().sum();
    if arguments.json {
        println!("{}", json!({ "tokens": sum, "folders": folders }));
    } else {
        for (folder, tokens) in &folders {
            println!("{tokens:>9}  {folder}");
        }
        println!("{sum:>9}  in all");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut files = BTreeMap::new();
    let mut tests = BTreeSet::new();
    for file in sources::files(root, &["rs"])?.into_iter().filter(|file| is_product(file)) {
        let text = fs::read_to_string(root.join(&file))?;
        let stream: TokenStream =
            text.parse().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        let mut tokens = Tokens::default();
        tokens.add(stream);
        tests.extend(tokens.test_modules.iter().map(|module| folder_of(&file).join(module)));
        files.insert(file, tokens.count);
    }
    let is_test =
        |file: &Path| file.ancestors().any(|part| tests.contains(&part.with_extension("")));
    let mut folders = BTreeMap::new();
    for (file, count) in files.iter().filter(|(file, _)| !is_test(file)) {
        *folders.entry(package_of(root, file)).or_insert(0) += count;
    }
    Ok(folders)
}

fn is_product(file: &Path) -> bool {
    let mut parts = file.iter().filter_map(|part| part.to_str());
    let first = parts.next().unwrap_or_default();
    !OTHERS.contains(&first) && !parts.any(|part| BESIDE.contains(&part))
}

/// Returns the innermost folder with a manifest.
fn package_of(root: &Path, file: &Path) -> String {
    let is_package = |folder: &&Path| root.join(folder).join("Cargo.toml").exists();
    let folder = file.ancestors().skip(1).find(is_package).unwrap_or(Path::new(""));
    folder.display().to_string()
}

/// Returns the folder of a file's modules.
fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().unwrap_or(Path::new(""));
    match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => folder.to_owned(),
        Some(stem) => folder.join(stem),
    }
}

/// The tokens of a file, without tests.
#[derive(Default)]
struct Tokens {
    count: usize,
    /// Modules in separate files that are compiled for tests only.
    test_modules: Vec<String>,
}

impl Tokens {
    fn add(&mut self, stream: TokenStream) {
        let mut tokens = stream.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match (&token, tokens.peek()) {
                (TokenTree::Punct(hash), Some(TokenTree::Group(attribute)))
                    if hash.as_char() == '#' =>
                {
                    let attribute = attribute.clone();
                    if is_test(&attribute) {
                        tokens.next();
                        self.skip_item(&mut tokens);
                    } else if is_documentation(&attribute) {
                        tokens.next();
                    } else {
                        self.count += 1;
                    }
                }
                (TokenTree::Punct(hash), Some(TokenTree::Punct(bang)))
                    if hash.as_char() == '#' && bang.as_char() == '!' =>
                {
                    tokens.next();
                    let inner = tokens.next_if(|next| match next {
                        TokenTree::Group(attribute) => is_documentation(attribute),
                        _ => false,
                    });
                    self.count += if inner.is_some() { 0 } else { 2 };
                }
                (TokenTree::Group(group), _) => {
                    self.count += 2 * usize::from(group.delimiter() != Delimiter::None);
                    self.add(group.stream());
                }
                _ => self.count += 1,
            }
        }
    }

    /// Skips an item, up to its body or its semicolon.
    fn skip_item(&mut self, tokens: &mut impl Iterator<Item = TokenTree>) {
        let mut words = Vec::new();
        for token in tokens {
            match &token {
                TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => return,
                TokenTree::Punct(end) if end.as_char() == ';' => break,
                other => words.push(other.to_string()),
            }
        }
        if let [.., keyword, module] = &words[..]
            && keyword == "mod"
        {
            self.test_modules.push(module.clone());
        }
    }
}

/// Returns whether this is `[test]`, `[cfg(test)]` or `[cfg(any(test, ...))]`.
fn is_test(attribute: &Group) -> bool {
    let mut tokens = attribute.stream().into_iter();
    match (tokens.next().map(|name| name.to_string()).as_deref(), tokens.next()) {
        (Some("test"), None) => true,
        (Some("cfg"), Some(TokenTree::Group(condition))) => {
            let condition = condition.stream().to_string();
            let mut words = condition.split(|byte: char| !byte.is_ascii_alphanumeric());
            words.any(|word| word == "test") && !condition.contains("not")
        }
        _ => false,
    }
}

fn is_documentation(attribute: &Group) -> bool {
    let first = attribute.stream().into_iter().next();
    first.is_some_and(|name| name.to_string() == "doc")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> (usize, Vec<String>) {
        let mut tokens = Tokens::default();
        tokens.add(text.parse().expect("Rust"));
        (tokens.count, tokens.test_modules)
    }

    #[test]
    fn comments_and_tests_do_not_count() {
        let product = tokens("fn f() -> u8 { 1 }").0;
        assert_eq!(product, 10);
        for text in [
            "//! A file.\n/// A function.\nfn f() -> u8 {\n    // One.\n    1\n}\n",
            "fn f() -> u8 { 1 }\n#[cfg(test)]\nmod tests { fn g() {} }",
            "#[test]\nfn g() { f(); }\nfn f() -> u8 { 1 }",
        ] {
            assert_eq!(tokens(text).0, product, "{text}");
        }
        assert!(tokens("#[inline] fn f() -> u8 { 1 }").0 > product);
        assert!(tokens("#[cfg(not(test))] fn f() -> u8 { 1 }").0 > product);
    }

    #[test]
    fn separate_test_module_is_named() {
        let text = "#[cfg(test)]\nmod tests;\n\
                    #[cfg(any(test, feature = \"doubles\"))]\npub mod declared;\nmod own;";
        assert_eq!(tokens(text), (3, vec!["tests".to_owned(), "declared".to_owned()]));
        assert_eq!(
            folder_of(Path::new("a/src/gate.rs")).join("tests"),
            Path::new("a/src/gate/tests")
        );
        assert_eq!(folder_of(Path::new("a/src/lib.rs")).join("tests"), Path::new("a/src/tests"));
    }
}
