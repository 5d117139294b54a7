//! Layouts of the Open Container Initiative, packed in one archive: an image for several machines,
//! and the chart.

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::files::{Content, Entry};
use crate::release::{Made, Release};
use crate::{archive, deb};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Programs of the image, which are linked statically. Those of nodes need a shell and NVIDIA's
/// libraries: `kubernetes/image` is for them.
pub const PROGRAMS: [&str; 2] = ["cgpu-scheduler-extender", "cgpu-dra-controller"];
/// The user and group of the programs, as in the chart.
const USER: &str = "65534:65534";

pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files of a layout.
#[derive(Default)]
struct Layout {
    blobs: Vec<Entry>,
}

impl Layout {
    /// Adds bytes; returns their descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = sum(&bytes);
        let descriptor = json!({
            "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len(),
        });
        let path = format!("blobs/sha256/{digest}");
        if self.blobs.iter().all(|blob| blob.path != path) {
            self.blobs.push(Entry::file(path, bytes, 0o644));
        }
        descriptor
    }

    /// Packs the layout, whose only name is the version.
    fn pack(mut self, release: &Release, mut top: Value) -> Result<Vec<u8>> {
        top["annotations"] = json!({ "org.opencontainers.image.ref.name": release.version });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [top] });
        self.blobs.push(Entry::file("index.json", index.to_string(), 0o644));
        let version = json!({ "imageLayoutVersion": "1.0.0" });
        self.blobs.push(Entry::file("oci-layout", version.to_string(), 0o644));
        archive::tar(&self.blobs, release.time)
    }
}

/// The image of one machine: its name, and its programs with their bytes.
pub(crate) type Machine<'a> = (&'a str, Vec<(&'static str, Vec<u8>)>);

/// Returns the image's name and bytes.
pub(crate) fn image(release: &Release, machines: &[Machine]) -> Result<Made> {
    let mut layout = Layout::default();
    let mut manifests = Vec::new();
    for (machine, programs) in machines {
        let licence = Entry::file("/opt/cgpu/LICENSE", release.licence_text.clone(), 0o644);
        let programs = programs
            .iter()
            .map(|(name, bytes)| Entry::file(format!("/opt/cgpu/{name}"), bytes.clone(), 0o755));
        let layer: Vec<Entry> = programs.chain([licence]).collect();
        let layer = archive::tar(&layer, release.time)?;
        let platform = json!({ "architecture": deb::architecture(machine)?, "os": "linux" });
        let configuration = json!({
            "created": release.date,
            "architecture": platform["architecture"],
            "os": "linux",
            "config": {
                "User": USER,
                "WorkingDir": "/",
                "Cmd": [format!("/opt/cgpu/{}", PROGRAMS[0])],
                "Labels": {
                    "org.opencontainers.image.title": "cgpu-controllers",
                    "org.opencontainers.image.version": release.version,
                    "org.opencontainers.image.revision": release.commit,
                    "org.opencontainers.image.licenses": release.license,
                },
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sum(&layer))] },
            "history": [{ "created": release.date, "created_by": "cargo xtask package" }],
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": layout.add(
                "application/vnd.oci.image.config.v1+json",
                configuration.to_string().into(),
            ),
            "layers": [layout.add(
                "application/vnd.oci.image.layer.v1.tar+gzip",
                archive::gzip(&layer)?,
            )],
        });
        let mut descriptor = layout.add(MANIFEST, manifest.to_string().into());
        descriptor["platform"] = platform;
        manifests.push(descriptor);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
    let top = layout.add(INDEX, index.to_string().into());
    let name = format!("cgpu-controllers-{}.oci.tar", release.version);
    Ok((name, layout.pack(release, top)?))
}

/// Returns the name and the bytes of the chart as an artifact of a registry.
pub(crate) fn chart(release: &Release, about: &Value, chart: Vec<u8>) -> Result<Made> {
    let mut layout = Layout::default();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.add(
            "application/vnd.cncf.helm.config.v1+json",
            about.to_string().into(),
        ),
        "layers": [layout.add("application/vnd.cncf.helm.chart.content.v1.tar+gzip", chart)],
        "annotations": {
            "org.opencontainers.image.created": release.date,
            "org.opencontainers.image.title": "cgpu",
            "org.opencontainers.image.version": release.version,
        },
    });
    let top = layout.add(MANIFEST, manifest.to_string().into());
    Ok((format!("cgpu-chart-{}.oci.tar", release.version), layout.pack(release, top)?))
}

/// Returns the files of a layout's archive by name, for tests.
pub fn unpack(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut archive = tar::Archive::new(bytes);
    let mut entries = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let mode = entry.header().mode()?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes)?;
        entries.push(Entry { path, content: Content::File { bytes, mode } });
    }
    Ok(entries)
}
