//! The slices of pods' containers. Their variables name a slice that the kubelet has counted, and
//! the node's device plugin knows what it is.
//!
//! When the plugin allocated the slice, it could not know for which container
//! ([`cgpu_kubernetes_core::binding`]). Here the configuration names pod and container, and nothing
//! in the container runs yet. So the plugin is queried. Its answer replaces all variables for
//! limits and GPUs, from the image or from the pod.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_kubernetes_core::binding::{
    BindReply, BindRequest, LIMIT_VARIABLES, MAX_LINE_BYTES, SOCKET, unbound,
};
use cgpu_kubernetes_core::names::variable;
use cgpu_shm::peer;

use crate::config::Config;
use crate::edit::Configuration;
use crate::plan::{Declared, Refusal};

/// Timeout for the plugin's answer: it may query the API server more than once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The annotations for a part of the identity, of containerd and of CRI-O.
type Names = [&'static str; 2];
const NAMESPACE: Names = ["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"];
const POD: Names = ["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"];
const UID: Names = ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"];
const CONTAINER: Names = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"];

/// Returns the configuration with the variables of its slice; `None` if it is not a pod's
/// container, or the kubelet counted nothing for it.
///
/// # Errors
/// The container must not be started; the message says why.
pub fn bound(
    configuration: &Configuration,
    config: &Config,
) -> Result<Option<Configuration>, Refusal> {
    let variables = configuration.variables();
    let declared = Declared::new(&variables)?;
    let socket = config.root.join(SOCKET);
    let Some(slice) = declared.get(variable::SLICE) else {
        return refuse_unscheduled(configuration, &declared, &socket).map(|()| None);
    };
    let question = question(configuration, slice)?;
    let refuse = |why: String| {
        Refusal(format!(
            "container `{}` of {}/{} gets no slice of a GPU: {why}",
            question.container.escape_default(),
            question.namespace.escape_default(),
            question.pod.escape_default()
        ))
    };
    match query(&socket, &question) {
        Ok(BindReply::Bound(given)) => {
            Ok(Some(configuration.clone().with_variables(&given, &LIMIT_VARIABLES)))
        }
        Ok(BindReply::Refused(message)) => Err(refuse(message)),
        Err(error) => Err(refuse(format!(
            "the node's device plugin does not answer at {} ({error}); check cgpu-device-plugin",
            socket.display()
        ))),
    }
}

/// Refuses a pod that requests a limit by variables alone: it was not scheduled for a GPU, and
/// would take the share of another pod. Without a device plugin it is allowed, since no shares are
/// counted.
fn refuse_unscheduled(
    configuration: &Configuration,
    declared: &Declared<'_>,
    socket: &Path,
) -> Result<(), Refusal> {
    let is_pods = CONTAINER.iter().any(|name| configuration.annotation(name).is_some());
    if is_pods && declared.request_memory() && socket.exists() {
        return Err(Refusal(
            "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit in a pod without a GPU request: set \
             aliyun.com/gpu-mem in the container's limits, and leave the variable out"
                .into(),
        ));
    }
    Ok(())
}

/// Returns whether a process to start may belong to a pod with a slice. Other processes are not
/// parsed.
#[must_use]
pub fn names_slice(process: &[u8]) -> bool {
    let name = format!("\"{}=", variable::SLICE);
    process.windows(name.len()).any(|part| part == name.as_bytes())
}

/// Returns the container's identity, from its engine's annotations.
fn question(configuration: &Configuration, slice: &str) -> Result<BindRequest, Refusal> {
    let text = |names: Names| {
        let mut values = names.iter().filter_map(|name| configuration.annotation(name));
        let first = values.next().filter(|text| !text.is_empty()).ok_or_else(|| {
            Refusal(format!(
                "the variable {} names a slice of a pod, but config.json of the container has \
                 neither the annotation {} nor {}: start it by Kubernetes, with containerd or \
                 CRI-O",
                variable::SLICE,
                names[0],
                names[1]
            ))
        })?;
        match values.find(|other| *other != first) {
            Some(other) => Err(Refusal(format!(
                "the annotations {} and {} of the container are `{}` and `{}`, expected the same",
                names[0],
                names[1],
                first.escape_default(),
                other.escape_default()
            ))),
            None => Ok(first.to_owned()),
        }
    };
    Ok(BindRequest {
        slice: slice.to_owned(),
        namespace: text(NAMESPACE)?,
        pod: text(POD)?,
        uid: text(UID)?,
        container: text(CONTAINER)?,
    })
}

fn query(socket: &PathBuf, question: &BindRequest) -> std::io::Result<BindReply> {
    let mut stream = UnixStream::connect(socket)?;
    // A user who can make a socket there could assign GPUs.
    let own = rustix::process::geteuid().as_raw();
    let theirs = peer::user(&stream)?;
    if ![0, own].contains(&theirs) {
        return Err(std::io::Error::other(format!(
            "the socket belongs to user {theirs}, expected root"
        )));
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    line.clear();
    BufReader::new(stream.take(MAX_LINE_BYTES)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(std::io::Error::other("the connection ended without an answer"));
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Checks that the plugin was queried for a container with a slice's CDI device. It was not, if its
/// engine's runtime is not `cgpu-runtime`.
///
/// # Errors
/// The plugin was not queried.
pub fn check(configuration: &Configuration) -> Result<(), Refusal> {
    let variables = configuration.variables();
    let declared = Declared::new(&variables)?;
    match unbound(|name| declared.get(name)) {
        None => Ok(()),
        Some(slice) => Err(Refusal(format!(
            "the container has the slice {}, but is not started by cgpu-runtime: give the pod a \
             runtime class with the handler cgpu, or make cgpu-runtime the engine's default",
            slice.escape_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::net::UnixListener;

    fn config(root: &Path) -> Config {
        let mut config = Config::default();
        root.clone_into(&mut config.root);
        config
    }

    fn configuration(env: &[&str], annotations: &Value) -> Configuration {
        let document = json!({"process": {"env": env}, "annotations": annotations});
        Configuration::parse(document.to_string().as_bytes()).unwrap()
    }

    fn containerd_annotations() -> Value {
        json!({"io.kubernetes.cri.sandbox-namespace": "test", "io.kubernetes.cri.sandbox-name": "p",
            "io.kubernetes.cri.sandbox-uid": "u", "io.kubernetes.cri.container-name": "main"})
    }

    fn crio_annotations() -> Value {
        json!({"io.kubernetes.pod.namespace": "test", "io.kubernetes.pod.name": "p",
            "io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "main"})
    }

    /// Starts a plugin that answers once, and returns the question.
    fn plugin(root: &Path, answer: &str) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(root.join(SOCKET)).unwrap();
        let answer = answer.to_owned();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            line
        })
    }

    #[test]
    fn answer_of_the_plugin_replaces_variables() {
        for annotations in [containerd_annotations(), crio_annotations()] {
            let root = tempfile::tempdir().unwrap();
            let question = plugin(
                root.path(),
                "{\"bound\":[[\"NVIDIA_VISIBLE_DEVICES\",\"GPU-1\"],\
                 [\"ALIYUN_COM_GPU_MEM_CONTAINER\",\"2\"]]}\n",
            );
            let env = [
                "PATH=/bin",
                "CGPU_SLICE=7-2",
                "NVIDIA_VISIBLE_DEVICES=cgpu-slice-7-2",
                "CGPU_DISABLE=true",
                "ALIYUN_COM_GPU_MEM_CONTAINER=9",
                "ALIYUN_COM_GPU_VISIBLE_DEVICES=0",
                "ALIYUN_COM_GPU_SCHD_WEIGHT=2",
            ];
            let given =
                bound(&configuration(&env, &annotations), &config(root.path())).unwrap().unwrap();
            assert_eq!(
                given.variables(),
                [
                    "PATH=/bin",
                    "CGPU_SLICE=7-2",
                    "ALIYUN_COM_GPU_SCHD_WEIGHT=2",
                    "NVIDIA_VISIBLE_DEVICES=GPU-1",
                    "ALIYUN_COM_GPU_MEM_CONTAINER=2"
                ]
            );
            assert_eq!(
                question.join().unwrap(),
                "{\"slice\":\"7-2\",\"namespace\":\"test\",\"pod\":\"p\",\"uid\":\"u\",\
                 \"container\":\"main\"}\n"
            );
            assert_eq!(check(&given), Ok(()));
            let refusal = check(&configuration(&env, &annotations)).unwrap_err().to_string();
            assert!(refusal.contains("the container has the slice 7-2, but"), "{refusal}");
        }
    }

    #[test]
    fn container_without_an_answer_is_refused() {
        let refused = |annotations: &Value, root: &Path| {
            let configuration = configuration(&["CGPU_SLICE=7-2"], annotations);
            bound(&configuration, &config(root)).unwrap_err().to_string()
        };
        let root = tempfile::tempdir().unwrap();
        let absent = refused(&containerd_annotations(), root.path());
        assert!(
            absent.starts_with(
                "container `main` of test/p gets no slice of a GPU: the node's device plugin does \
                 not answer at "
            ),
            "{absent}"
        );
        let question = plugin(root.path(), "{\"refused\":\"no GPU was chosen\"}\n");
        assert!(
            refused(&containerd_annotations(), root.path())
                .ends_with("of a GPU: no GPU was chosen")
        );
        question.join().unwrap();
        std::fs::remove_file(root.path().join(SOCKET)).unwrap();
        let question = plugin(root.path(), "{\"bound\":");
        assert!(
            refused(&containerd_annotations(), root.path()).contains("ended without an answer")
        );
        question.join().unwrap();
        // Not a container of a pod.
        assert!(
            refused(&json!({}), root.path())
                .contains("has neither the annotation io.kubernetes.cri.sandbox-namespace")
        );
        let mut both = containerd_annotations();
        both["io.kubernetes.pod.uid"] = "v".into();
        assert!(refused(&both, root.path()).contains("are `u` and `v`, expected the same"));
    }

    #[test]
    fn container_without_a_slice_is_not_queried() {
        let root = tempfile::tempdir().unwrap();
        let by_variables = |annotations: &Value| {
            bound(
                &configuration(&["ALIYUN_COM_GPU_MEM_CONTAINER=2"], annotations),
                &config(root.path()),
            )
        };
        assert_eq!(by_variables(&containerd_annotations()), Ok(None));
        let _listener = UnixListener::bind(root.path().join(SOCKET)).unwrap();
        assert_eq!(by_variables(&json!({})), Ok(None), "Docker beside Kubernetes");
        let refusal = by_variables(&crio_annotations()).unwrap_err().to_string();
        assert!(refusal.contains("set aliyun.com/gpu-mem"), "{refusal}");
        assert_eq!(
            bound(&configuration(&["A=1"], &crio_annotations()), &config(root.path())),
            Ok(None)
        );
    }
}
