//! The commands of the reference documents, verbatim but for the image, and the values that they
//! print. What Kubernetes adds to the environment of document 000's pod is in its line here.

use super::docker::{sizes_in, with_resources};
use super::*;

/// Commands, and the memory of each GPU in MiB that `nvidia-smi` shows in the container.
struct Example {
    document: &'static str,
    /// GPUs of the document's machine, in the simulated driver's syntax.
    gpus: &'static str,
    lines: &'static [&'static str],
    shows: &'static [(&'static str, &'static [u64])],
}

const EXAMPLES: &[Example] = &[
    Example {
        document: "002, two containers on one T4",
        gpus: "T4:15109",
        lines: &[
            "docker run -d -t --gpus all --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 --name gpu_test1 -v /mnt:/mnt \
             -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE",
            "docker run -d -t --gpus all --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 --name gpu_test2 -v /mnt:/mnt \
             -e ALIYUN_COM_GPU_MEM_CONTAINER=8 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE",
        ],
        shows: &[("gpu_test1", &[6043]), ("gpu_test2", &[8058])],
    },
    Example {
        document: "002, four GPUs of 23 GiB",
        gpus: "A10:23028,A10:23028,A10:23028,A10:23028",
        lines: &[
            "docker run -d -t --runtime=nvidia  --name gpu_test0123 --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 -v /mnt:/mnt \
                  -e ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5,6 -e ALIYUN_COM_GPU_MEM_DEV=23 -e NVIDIA_VISIBLE_DEVICES=0,1,2,3 IMAGE",
        ],
        shows: &[("gpu_test0123", &[3003, 4004, 5006, 6007])],
    },
    Example {
        document: "000, 8 GiB over four V100",
        gpus: "V100:16130,V100:16130,V100:16130,V100:16130",
        lines: &["docker run -d -t --gpus all --name binpack-1-0 \
                  -e ALIYUN_COM_GPU_MEM_CONTAINER=2 -e ALIYUN_COM_GPU_MEM_DEV=15 -e NVIDIA_VISIBLE_DEVICES=0,1,2,3 IMAGE"],
        shows: &[("binpack-1-0", &[2150, 2150, 2150, 2150])],
    },
];

#[test]
fn documented_commands_give_documented_values() {
    for example in EXAMPLES {
        let fixture = Fixture::new(example.gpus);
        let test = "documents::documented_commands_give_documented_values";
        let Some(docker) = Docker::start(test, &fixture, example.gpus) else { return };
        for line in example.lines {
            docker.line(&with_resources(&docker, line)).exits(0);
        }
        for (name, sizes) in example.shows {
            assert_eq!(sizes_in(&docker, name), *sizes, "{}", example.document);
        }
    }
}

/// The table of document 002: what a list means for four GPUs, and when there is no slice.
#[test]
fn visible_device_lists_select_documented_gpus() {
    let gpus = "A10:23028,A10:23028,A10:23028,A10:23028";
    let fixture = Fixture::new(gpus);
    let test = "documents::visible_device_lists_select_documented_gpus";
    let Some(docker) = Docker::start(test, &fixture, gpus) else { return };
    let rows: [(Option<&str>, Option<[u64; 4]>); 6] = [
        (Some("3"), Some([3003; 4])),
        (Some("3,1"), Some([3003, 1001, 1001, 1001])),
        (Some("3,4,5,6"), Some([3003, 4004, 5006, 6007])),
        (None, None),
        (Some("0"), None),
        (Some("1,0,0"), None),
    ];
    for (list, sizes) in rows {
        let request =
            list.map(|list| format!("-e ALIYUN_COM_GPU_MEM_CONTAINER={list} ")).unwrap_or_default();
        let line = format!(
            "docker run -d --name row {request}-e ALIYUN_COM_GPU_MEM_DEV=23 -e NVIDIA_VISIBLE_DEVICES=0,1,2,3 IMAGE"
        );
        docker.line(&line).exits(0);
        match sizes {
            Some(sizes) => assert_eq!(sizes_in(&docker, "row"), sizes, "{list:?}"),
            None => {
                let maps = docker.run(&["exec", "row", "cat", "/proc/self/maps"]).exits(0).stdout;
                assert!(!maps.contains("cgpu"), "{list:?}: {maps}");
            }
        }
        docker.run(&["rm", "--force", "row"]).exits(0);
    }
}
