//! What is in the files of a release. The built files are texts here; `systems` installs programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, skip};
use cgpu_packages::Release;
use cgpu_packages::files::Sources;
use serde_json::Value;

const MACHINE: &str = "x86_64";
const TIME: u64 = 1_700_000_000;
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Makes a folder of built files, each with its name as text.
fn built(folder: &Path) {
    let table = Sources(&sources()).table().expect("a table");
    let names = table.iter().map(|line| line.from.as_str());
    for name in names.chain(["cgpu-dra-controller", "cgpu-dra-driver"]) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, name).expect("a file");
    }
}

/// Makes a release into a folder; returns its files by name.
fn release(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (from, to) = (folder.join("built"), folder.join("release"));
    built(&from);
    let release = Release::at(&sources(), TIME).expect("a release");
    let machines = [(MACHINE.to_owned(), from.clone()), ("aarch64".to_owned(), from)];
    release.make(&sources(), &machines, &to).expect("files");
    let entries = fs::read_dir(to).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).expect("a file"))
        })
        .collect()
}

struct Fixture {
    folder: tempfile::TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = release(folder.path());
        Self { folder, files }
    }

    /// Returns the only file whose name ends so.
    fn file(&self, end: &str) -> (PathBuf, &[u8]) {
        let mut found = self.files.iter().filter(|(name, _)| name.ends_with(end));
        let (name, bytes) = found.next().unwrap_or_else(|| panic!("no file ends with {end}"));
        assert!(found.next().is_none(), "several files end with {end}");
        (self.folder.path().join("release").join(name), bytes)
    }
}

/// A file of an archive: its permissions and content, or the target of a link.
#[derive(Debug, PartialEq, Eq)]
enum Packed {
    Folder(u32),
    File(u32, Vec<u8>),
    Link(String),
}

/// Reads an archive whose files belong to root and have the time of the release.
fn unpack(bytes: impl Read) -> BTreeMap<String, Packed> {
    let mut archive = tar::Archive::new(bytes);
    let mut found = BTreeMap::new();
    let mut before = String::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let header = entry.header().clone();
        let path = String::from_utf8(entry.path_bytes().into_owned()).expect("a path");
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0), "{path}");
        assert_eq!(header.mtime().unwrap(), TIME, "{path}");
        assert!(before < path, "{before} is before {path}");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("a content");
        let mode = header.mode().unwrap();
        let packed = match header.entry_type() {
            tar::EntryType::Directory => Packed::Folder(mode),
            tar::EntryType::Symlink => {
                let target = entry.link_name().expect("a link").expect("a target");
                Packed::Link(target.to_string_lossy().into_owned())
            }
            _ => Packed::File(mode, content),
        };
        found.insert(path.clone(), packed);
        before = path;
    }
    found
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut text).expect("a gzip file");
    text
}

/// Returns the control files and the installed files of a Debian package.
fn debian(bytes: &[u8]) -> [BTreeMap<String, Packed>; 2] {
    let mut archive = ar::Archive::new(bytes);
    let mut members = Vec::new();
    while let Some(member) = archive.next_entry() {
        let mut member = member.expect("a member");
        let name = String::from_utf8(member.header().identifier().to_vec()).expect("a name");
        let mut content = Vec::new();
        member.read_to_end(&mut content).expect("a content");
        members.push((name, content));
    }
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
    assert_eq!(members[0].1, b"2.0\n");
    [1, 2].map(|member: usize| unpack(gunzip(&members[member].1).as_slice()))
}

/// Returns the path and the permissions of each file that a package installs, by the table and
/// what is installed beside it.
fn expected() -> BTreeMap<String, u32> {
    let (sources, table) = (sources(), Sources(&sources()).table().expect("a table"));
    let mut files: BTreeMap<String, u32> =
        table.into_iter().map(|line| (line.place, line.mode)).collect();
    assert!(files.len() > 40, "{files:?}");
    for (name, _) in Sources(&sources).links().expect("links") {
        files.insert(format!("/usr/bin/{name}"), 0o777);
    }
    files.insert("/usr/lib/cgpu/files.sh".to_owned(), 0o644);
    files.insert("/etc/cgpu/monitor.toml".to_owned(), 0o644);
    files
}

#[test]
fn debian_package_has_the_files_of_the_table() {
    let fixture = Fixture::new();
    let (path, bytes) = fixture.file("_amd64.deb");
    let [control, data] = debian(bytes);
    let files: BTreeMap<String, u32> = data
        .iter()
        .filter_map(|(path, packed)| {
            let mode = match packed {
                Packed::Folder(mode) => {
                    assert_eq!(*mode, 0o755, "{path}");
                    return None;
                }
                Packed::File(mode, _) => *mode,
                Packed::Link(_) => 0o777,
            };
            Some((format!("/{path}"), mode))
        })
        .collect();
    assert_eq!(files, expected());
    for (path, text) in
        [("usr/bin/cgpu", "cgpu"), ("usr/lib/cgpu/sim/libcuda.so.1", "sim/libcuda.so.1")]
    {
        assert_eq!(data[path], Packed::File(0o755, text.into()));
    }
    assert_eq!(data["usr/bin/cgpu-smi"], Packed::Link("cgpu".to_owned()));
    assert_eq!(control["conffiles"], Packed::File(0o644, b"/etc/cgpu/monitor.toml\n".to_vec()));
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        skip("packages", "dpkg", "dpkg-deb is not installed");
        return;
    }
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--show", "--showformat=${Package} ${Version} ${Architecture}"]).arg(path);
    let shown = Child::start(dpkg).finish().exits(0).stdout;
    assert_eq!(shown, format!("cgpu {} amd64\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn scripts_of_packages_are_valid_for_a_shell() {
    let fixture = Fixture::new();
    let [control, _] = debian(fixture.file("_amd64.deb").1);
    let rpm = rpm::Package::parse(&mut Cursor::new(fixture.file(".x86_64.rpm").1)).expect("an RPM");
    let about = &rpm.metadata;
    let mut scripts: Vec<String> = [
        about.get_pre_install_script(),
        about.get_post_install_script(),
        about.get_pre_uninstall_script(),
        about.get_post_uninstall_script(),
    ]
    .map(|script| script.expect("a script").script)
    .into();
    for name in ["preinst", "postinst", "prerm", "postrm"] {
        let Packed::File(0o755, script) = &control[name] else {
            panic!("{name} is no program: {control:?}")
        };
        scripts.push(String::from_utf8(script.clone()).expect("a script"));
    }
    for script in scripts {
        let file = fixture.folder.path().join("script");
        fs::write(&file, &script).expect("a file");
        for shell in ["sh", "dash", "bash"] {
            if Command::new(shell).args(["-c", ":"]).output().is_err() {
                continue;
            }
            let mut check = Command::new(shell);
            check.arg("-n").arg(&file);
            Child::start(check).finish().silent();
        }
    }
}

#[test]
fn rpm_package_has_the_files_of_the_table() {
    let fixture = Fixture::new();
    let (path, bytes) = fixture.file(".x86_64.rpm");
    let package = rpm::Package::parse(&mut Cursor::new(bytes)).expect("an RPM");
    package.verify_digests().expect("digests");
    let files = package.metadata.get_file_entries().expect("files");
    let mut found = BTreeMap::new();
    for file in files {
        let path = file.path().to_string_lossy().into_owned();
        assert_eq!((file.user(), file.group()), ("root", "root"));
        if file.mode().file_type() != rpm::FileType::Dir {
            found.insert(path.clone(), u32::from(file.mode().permissions()));
        }
        let is_configuration = path == "/etc/cgpu/monitor.toml";
        assert_eq!(file.flags().contains(rpm::FileFlags::NOREPLACE), is_configuration, "{path}");
    }
    assert_eq!(found, expected());
    if Command::new("rpm").arg("--version").output().is_err() {
        skip("packages", "rpm", "rpm is not installed");
        return;
    }
    let mut query = Command::new("rpm");
    query.args(["--query", "--package", "--queryformat", "%{NAME} %{VERSION} %{ARCH}"]).arg(path);
    let shown = Child::start(query).finish().exits(0).stdout;
    assert_eq!(shown, format!("cgpu {} x86_64\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn tarball_has_what_its_scripts_install() {
    let fixture = Fixture::new();
    let files = unpack(gunzip(fixture.file("-x86_64.tar.gz").1).as_slice());
    let folder = format!("cgpu-{}-x86_64", env!("CARGO_PKG_VERSION"));
    for line in Sources(&sources()).table().expect("a table") {
        let path = format!("{folder}/{}", line.from);
        let Some(Packed::File(mode, _)) = files.get(&path) else { panic!("no {path}") };
        assert_eq!(*mode, line.mode, "{path}");
    }
    for name in ["install.sh", "upgrade.sh", "uninstall.sh", "files.sh", "node.sh"] {
        assert!(files.contains_key(&format!("{folder}/deploy/{name}")), "{name}");
    }
}

/// The commands of the pages are for the folder of the tarball.
#[test]
fn tarball_has_the_files_for_clusters_that_its_pages_name() {
    let fixture = Fixture::new();
    let files = unpack(gunzip(fixture.file("-x86_64.tar.gz").1).as_slice());
    let folder = format!("cgpu-{}-x86_64", env!("CARGO_PKG_VERSION"));
    let mut named = BTreeSet::new();
    for (path, file) in &files {
        let Packed::File(_, text) = file else { continue };
        if !path.ends_with(".md") && !path.ends_with("NOTES.txt") {
            continue;
        }
        let text = std::str::from_utf8(text).expect("UTF-8");
        let is_part = |it: char| it.is_ascii_alphanumeric() || "/-_.".contains(it);
        let words = text.split(|it| !is_part(it)).map(|word| word.trim_end_matches(['.', '/']));
        named.extend(words.filter(|word| word.starts_with("kubernetes/")));
    }
    assert!(named.contains("kubernetes/image/Dockerfile"), "{named:?}");
    for name in named {
        let path = format!("{folder}/{name}");
        let is_packed = files.keys().any(|file| {
            file.strip_prefix(&path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        assert!(is_packed, "no {name}");
    }
}

/// Pages name the files of this version, or of `VERSION`. The commands of releasing.md have it in a
/// variable.
#[test]
fn pages_name_files_of_the_release() {
    let fixture = Fixture::new();
    for (page, expected) in [
        ("README.md", 2),
        ("docs/docker.md", 2),
        ("docs/operation.md", 2),
        ("docs/kubernetes.md", 3),
        ("kubernetes/image/Dockerfile", 1),
        ("docs/internals/releasing.md", 6),
    ] {
        let text = fs::read_to_string(sources().join(page)).expect(page);
        let text = text.replace("$new", VERSION).replace("VERSION", VERSION);
        let is_part = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let is_packed = |name: &&str| {
            [".deb", ".rpm", ".tar.gz", ".tgz", ".tar"].iter().any(|end| name.ends_with(end))
        };
        let words = text.split(|it| !is_part(it)).map(|word| word.trim_end_matches('.'));
        let named: BTreeSet<&str> =
            words.filter(|word| word.starts_with("cgpu")).filter(is_packed).collect();
        for name in &named {
            assert!(fixture.files.contains_key(*name), "{page} names {name}");
        }
        assert_eq!(named.len(), expected, "{page}: {named:?}");
    }
}

/// Returns the blob of a descriptor, after a check of size and sum.
fn blob<'a>(layout: &'a BTreeMap<String, Packed>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().expect("a digest");
    let path = format!("blobs/{}", digest.replace(':', "/"));
    let Some(Packed::File(0o644, bytes)) = layout.get(&path) else { panic!("no {path}") };
    assert_eq!(descriptor["size"], bytes.len(), "{path}");
    assert_eq!(digest, format!("sha256:{}", sum(bytes)));
    bytes
}

fn sum(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

/// Returns the files of a layout, and the descriptor of its only entry.
fn layout(bytes: &[u8]) -> (BTreeMap<String, Packed>, Value) {
    let layout = unpack(bytes);
    let Packed::File(_, index) = &layout["index.json"] else { panic!("no index") };
    oci_spec::image::ImageIndex::from_reader(index.as_slice()).expect("an index");
    let index = json(index);
    assert_eq!(index["manifests"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"],
        env!("CARGO_PKG_VERSION")
    );
    assert!(layout.contains_key("oci-layout"));
    let top = index["manifests"][0].clone();
    (layout, top)
}

#[test]
fn image_has_static_programs_alone_for_each_machine() {
    let fixture = Fixture::new();
    let (layout, top) = layout(fixture.file(&format!("-controllers-{VERSION}.oci.tar")).1);
    let index = json(blob(&layout, &top));
    let mut machines = BTreeSet::new();
    for descriptor in index["manifests"].as_array().expect("manifests") {
        let manifest = blob(&layout, descriptor);
        oci_spec::image::ImageManifest::from_reader(manifest).expect("a manifest");
        let manifest = json(manifest);
        let configuration = blob(&layout, &manifest["config"]);
        let typed =
            oci_spec::image::ImageConfiguration::from_reader(configuration).expect("an image");
        let machine = typed.architecture().to_string();
        assert_eq!(descriptor["platform"]["architecture"], machine);
        let user = typed.config().as_ref().and_then(|config| config.user().clone());
        assert_eq!(user.as_deref(), Some("65534:65534"));
        let layer = gunzip(blob(&layout, &manifest["layers"][0]));
        assert_eq!(typed.rootfs().diff_ids(), &[format!("sha256:{}", sum(&layer))]);
        let files = unpack(layer.as_slice());
        let modes: Vec<(&str, u32)> = files
            .iter()
            .filter_map(|(path, packed)| match packed {
                Packed::File(mode, _) => Some((path.as_str(), *mode)),
                _ => None,
            })
            .collect();
        let expected = [
            ("opt/cgpu/LICENSE", 0o644),
            ("opt/cgpu/cgpu-dra-controller", 0o755),
            ("opt/cgpu/cgpu-scheduler-extender", 0o755),
        ];
        assert_eq!(modes, expected);
        machines.insert(machine);
    }
    assert_eq!(Vec::from_iter(machines), ["amd64", "arm64"]);
}

#[test]
fn chart_is_an_artifact_that_helm_renders() {
    let fixture = Fixture::new();
    let (path, chart) = fixture.file(&format!("cgpu-{VERSION}.tgz"));
    let (layout, top) = layout(fixture.file(&format!("cgpu-chart-{VERSION}.oci.tar")).1);
    let manifest = json(blob(&layout, &top));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.cncf.helm.config.v1+json");
    assert_eq!(json(blob(&layout, &manifest["config"]))["name"], "cgpu");
    assert_eq!(blob(&layout, &manifest["layers"][0]), chart);
    let files = unpack(gunzip(chart).as_slice());
    for name in ["Chart.yaml", "values.yaml", "templates/node.yaml", "files/prometheus-alerts.yaml"]
    {
        assert!(files.contains_key(&format!("cgpu/{name}")), "{name}");
    }
    if Command::new("helm").arg("version").output().is_err() {
        skip("packages", "helm", "helm is not installed");
        return;
    }
    let mut helm = Command::new("helm");
    helm.args(["template", "cgpu", "--namespace", "kube-system"]).arg(path);
    helm.args(["--set", "controllersImage=R/c:1"]);
    let rendered = Child::start(helm).finish().exits(0).stdout;
    let named = [
        format!("app.kubernetes.io/version: \"{VERSION}\""),
        "image: R/c:1\n".to_owned(),
        format!("image: cgpu:{VERSION}\n"),
    ];
    for line in named {
        assert!(rendered.contains(&line), "{line} is not in {rendered}");
    }
}

#[test]
fn list_of_components_is_valid_and_has_what_is_linked() {
    let fixture = Fixture::new();
    let (_, bytes) = fixture.file(".cdx.json");
    let bom = cyclonedx_bom::prelude::Bom::parse_from_json_v1_5(bytes).expect("CycloneDX");
    use cyclonedx_bom::prelude::Validate;
    let result = bom.validate_version(cyclonedx_bom::prelude::SpecVersion::V1_5);
    assert!(result.passed(), "{result:?}");
    let document = json(bytes);
    let names: BTreeSet<&str> = document["components"]
        .as_array()
        .expect("components")
        .iter()
        .filter_map(|component| component["name"].as_str())
        .collect();
    for linked in ["libc", "kube", "ratatui", "cgpu-shim", "fuser"] {
        assert!(names.contains(linked), "{linked}");
    }
    for other in ["proptest", "loom", "rpm", "tonic-prost-build", "cgpu-e2e"] {
        assert!(!names.contains(other), "{other}");
    }
}

#[test]
fn two_makings_are_the_same_bytes() {
    let first = Fixture::new();
    // The clock's second, with which a file would differ, has passed.
    let folder = first.folder.path().join("again");
    let elsewhere = folder.join("in/another/place");
    fs::create_dir_all(&elsewhere).expect("a folder");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let again = release(&elsewhere);
    let names: Vec<&String> = first.files.keys().collect();
    assert_eq!(names, Vec::from_iter(again.keys()));
    assert_eq!(names.len(), 11, "{names:?}");
    for (name, bytes) in &first.files {
        assert!(*bytes == again[name], "{name} differs");
    }
}

#[test]
fn sums_are_those_of_all_other_files() {
    let fixture = Fixture::new();
    let listed = String::from_utf8(fixture.file("SHA256SUMS").1.to_vec()).expect("text");
    let sums: String = fixture
        .files
        .iter()
        .filter(|(name, _)| *name != "SHA256SUMS")
        .map(|(name, bytes)| format!("{}  {name}\n", sum(bytes)))
        .collect();
    assert_eq!(listed, sums);
}

#[test]
fn chart_has_the_version_of_the_programs() {
    let text = fs::read_to_string(sources().join("kubernetes/chart/Chart.yaml")).expect("a chart");
    for key in ["version", "appVersion"] {
        let line = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&line), "{key} in {text}");
    }
}
