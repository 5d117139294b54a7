//! The name and image that an engine gives a container. A runtime gets only the id, so they are
//! read from the engine's files.

use std::fs;
use std::path::Path;

use cgpu_client::record::PodContainer;
use serde_json::Value;

use crate::edit::Configuration;
use crate::files;

/// A container's name and image, if known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The name as in `docker ps`; in Kubernetes, `namespace/pod/container`.
    pub name: Option<String>,
    /// The image as it was requested.
    pub image: Option<String>,
    /// The pod that it belongs to.
    pub pod: Option<PodContainer>,
}

impl Named {
    /// Finds name and image for the container of this id.
    #[must_use]
    pub fn of(configuration: &Configuration, bundle: &Path, id: &str) -> Self {
        kubernetes(configuration)
            .or_else(|| docker(configuration))
            .or_else(|| stored(bundle, id))
            .or_else(|| podman(configuration))
            .unwrap_or_default()
    }
}

/// Reads the annotations of containerd and CRI-O.
fn kubernetes(configuration: &Configuration) -> Option<Named> {
    let first = |names: &[&str]| names.iter().find_map(|name| configuration.annotation(name));
    let pod = first(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"])?;
    let namespace = first(&["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]);
    let container = first(&["io.kubernetes.cri.container-name", "io.kubernetes.container.name"]);
    let image = first(&["io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"]);
    let name =
        [namespace, Some(pod), container].into_iter().flatten().collect::<Vec<_>>().join("/");
    let uid = first(&["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"]);
    let of_pod = || {
        Some(PodContainer {
            namespace: namespace?.to_owned(),
            pod: pod.to_owned(),
            uid: uid?.to_owned(),
            container: container?.to_owned(),
        })
    };
    Some(Named { name: Some(name), image: image.map(str::to_owned), pod: of_pod() })
}

/// Reads Docker's `config.v2.json` beside the file that is mounted as `/etc/hostname`. A user may
/// mount a file there, too, so the record may be any file of that name.
fn docker(configuration: &Configuration) -> Option<Named> {
    let binds = configuration.binds();
    let (_, hostname) =
        binds.iter().find(|(destination, _)| destination == Path::new("/etc/hostname"))?;
    let text = files::read_plain(&hostname.with_file_name("config.v2.json")).ok()??;
    let record: Value = serde_json::from_slice(&text).ok()?;
    let name = record["Name"].as_str().map(|name| name.trim_start_matches('/').to_owned());
    let image = record["Config"]["Image"].as_str().map(str::to_owned);
    Some(Named { name, image, pod: None })
}

/// Reads podman's storage: a list of all containers, beside their folders, in one of which the
/// bundle is.
fn stored(bundle: &Path, id: &str) -> Option<Named> {
    let folder = bundle.parent()?.parent()?;
    ["containers.json", "volatile-containers.json"].iter().find_map(|name| {
        let text = files::read_plain(&folder.join(name)).ok()??;
        let all: Vec<Value> = serde_json::from_slice(&text).ok()?;
        let own = all.iter().find(|one| one["id"] == *id)?;
        let about: Value = serde_json::from_str(own["metadata"].as_str()?).ok()?;
        let word =
            |name: &str| about[name].as_str().filter(|word| !word.is_empty()).map(str::to_owned);
        Some(Named {
            name: word("name").or_else(|| own["names"][0].as_str().map(str::to_owned)),
            image: word("image-name"),
            pod: None,
        })
    })
}

/// Reads the name from the arguments of podman's container monitor (conmon), which starts this
/// process.
fn podman(configuration: &Configuration) -> Option<Named> {
    configuration.variables().iter().find(|variable| *variable == "container=podman")?;
    let parent = std::os::unix::process::parent_id();
    let text = fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    named_by(&text).map(|name| Named { name: Some(name), ..Named::default() })
}

/// Returns the argument after `-n`.
fn named_by(arguments: &[u8]) -> Option<String> {
    let words: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
    let at = words.iter().position(|word| matches!(*word, b"-n" | b"--name"))?;
    String::from_utf8(words.get(at + 1)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(document: &Value) -> Named {
        let configuration = Configuration::parse(document.to_string().as_bytes()).unwrap();
        Named::of(&configuration, Path::new("/nowhere/at/all"), "0123")
    }

    #[test]
    fn name_is_found_for_each_engine() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("config.v2.json"),
            r#"{"Name":"/gpu_test1","Config":{"Image":"tensorflow:19.10-py3"}}"#,
        )
        .unwrap();
        let hostname = folder.path().join("hostname");
        let docker = named(&json!({"mounts": [
                {"destination": "/etc/hostname", "type": "bind", "source": hostname}]}));
        assert_eq!(
            (docker.name.as_deref(), docker.image.as_deref()),
            (Some("gpu_test1"), Some("tensorflow:19.10-py3"))
        );
        fs::write(
            folder.path().join("containers.json"),
            r#"[{"id":"77","names":["other"],"metadata":"{}"},
                {"id":"0123","names":["jolly"],
                    "metadata":"{\"image-name\":\"localhost/cuda:latest\",\"name\":\"jolly\"}"}]"#,
        )
        .unwrap();
        let podman = stored(&folder.path().join("0123/userdata"), "0123").unwrap();
        assert_eq!(
            (podman.name.as_deref(), podman.image.as_deref()),
            (Some("jolly"), Some("localhost/cuda:latest"))
        );
        let pod = named(&json!({"annotations": {
            "io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.container-name": "c",
            "io.kubernetes.cri.sandbox-namespace": "n", "io.kubernetes.cri.image-name": "i"}}));
        assert_eq!((pod.name.as_deref(), pod.image.as_deref()), (Some("n/p/c"), Some("i")));
        assert_eq!(pod.pod, None);
        let pod = named(&json!({"annotations": {
            "io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n",
            "io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "c"}}));
        let [namespace, name, uid, container] = ["n", "p", "u", "c"].map(str::to_owned);
        assert_eq!(pod.pod, Some(PodContainer { namespace, pod: name, uid, container }));
        assert_eq!(named(&json!({})), Named::default());
        assert_eq!(
            named_by(b"conmon\0--api-version\x001\0-n\0jolly\0-u\0x\0").as_deref(),
            Some("jolly")
        );
        assert_eq!(named_by(b"bash\0-n"), None);
    }
}
