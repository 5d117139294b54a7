/* SPDX-License-Identifier: Apache-2.0
 *
 * cgpu.h - the shared memory between a container and the host monitor. Normative: shm/src/layout.rs says the same in Rust,
 * and a test compiles this file and compares every offset.
 *
 * One container is one directory (CGPU_DIR, by default /run/cgpu inside the container):
 *
 *     use      written by the container's processes, read (never mapped) by the monitor
 *     grant    written by the monitor, mapped read-only by the container's processes
 *     limits   text, optional: what the starter of the container allows it (see docs/internals/files.md)
 *     doorbell FIFO, optional: one byte wakes the monitor
 *     refused  text, optional: why the shim refused to start
 *
 * Every multi-byte field is in the host's byte order and naturally aligned. Fields marked ATOMIC are only ever accessed with
 * single aligned loads and stores (or read-modify-writes) of their own width. Inodes never change: a file is created under
 * another name, filled, and linked into place; its space is allocated up front and it is never resized.
 *
 * Time is CLOCK_MONOTONIC in nanoseconds unless a field says otherwise. Memory is bytes.
 */
#ifndef CGPU_H
#define CGPU_H

#include <stddef.h>
#include <stdint.h>

#define CGPU_LAYOUT_VERSION 4u
#define CGPU_USE_MAGIC 0x55504743u   /* "CGPU" */
#define CGPU_GRANT_MAGIC 0x47504743u /* "CGPG" */

#define CGPU_GPUS 16u    /* GPUs of one container */
#define CGPU_SLOTS 256u   /* processes of one container */
#define CGPU_COUNTERS 48u /* counted reasons per process */
#define CGPU_INTERVALS 7u /* published busy intervals per process and GPU */
#define CGPU_NAME 64u
#define CGPU_DEVICES 56u  /* devices of a host that the monitor can tell of: eight GPUs of seven instances each */

/* Liveness: the open-file-description lock that a living process holds on byte CGPU_LOCK_BASE + slot of `use`. */
#define CGPU_LOCK_BASE (UINT64_C(1) << 40)
/* Creation and registration of GPUs are serialised by the same kind of lock on this byte. */
#define CGPU_LOCK_REGION (CGPU_LOCK_BASE - 1)

/* ---- file `use` ------------------------------------------------------------------------------------------------------- */

/* A GPU as the container knows it. Registered by UUID under CGPU_LOCK_REGION, then counted; `total`, `limit` and `ordinal` are renewed
 * only by a process that registers while no other lives. `context`, `agreed` and `lock` change at any time. */
struct cgpu_gpu {
    uint8_t uuid[16];
    uint64_t total;      /* the GPU's memory, as NVML gives it */
    uint64_t limit;      /* the limit when the GPU was registered; 0: none. grant.limit, when not 0, wins */
    uint32_t ordinal;    /* the GPU's place in NVIDIA_VISIBLE_DEVICES */
    uint32_t reserved0;
    uint64_t withdrawn;  /* ATOMIC: bytes taken off the ledger that `returned` may count */
    uint64_t context;    /* ATOMIC: what a context was last seen to cost on this GPU; 0: not known yet */
    uint64_t agreed;     /* ATOMIC: not 0: two contexts in turn were seen to cost what `context` says */
    uint32_t lock;       /* ATOMIC futex: 0 free, else the owner; see CGPU_LOCK_WORD. Serialises charges */
    uint32_t learning;   /* ATOMIC futex, as `lock`: the process that creates the container's first context here, to learn what one costs */
    uint32_t reserved3[14];
};

/* Lock word: bit 31 says that a thread sleeps; bits 30..8 are the low bits of the owner slot's generation, bits 7..0 the slot;
 * never zero for an owner because generations start at 1 and their low 23 bits skip 0. */
#define CGPU_LOCK_SLEEPERS UINT32_C(0x80000000)

struct cgpu_use_header {
    uint32_t version;    /* ATOMIC, written last (release): 0 not ready, else CGPU_LAYOUT_VERSION */
    uint32_t magic;      /* CGPU_USE_MAGIC */
    uint64_t size;       /* of the file */
    uint32_t gpus;      /* ATOMIC: registered GPUs (release after the record is filled) */
    uint32_t high_water; /* ATOMIC: slots at or above were never used */
    uint64_t created;    /* CLOCK_REALTIME */
    char name[CGPU_NAME];
    uint32_t time_scale; /* host time per device time, in thousandths; 0: 1000, as on every real GPU */
    uint8_t reserved[1948];
    struct cgpu_gpu gpu[CGPU_GPUS];
};

/* Slot states. live -> draining when the process is found dead; draining -> free when its memory is really gone, but -> orphan when it had
 * exported some, which other processes may hold; orphan -> free when none does. */
#define CGPU_SLOT_FREE 0u
#define CGPU_SLOT_LIVE 1u
#define CGPU_SLOT_DRAINING 2u
#define CGPU_SLOT_ORPHAN 3u

/* Who may hold what a process exported. A handle that is good only while its maker holds the memory (legacy IPC, a pointer of a pool) has one
 * of the bits 0..62, by a hash of its bytes; a process that opens it sets that bit in its own `opened_handles`. Bit 63: handed out in a way that no process can be
 * seen to hold it by: a descriptor, the fabric, a multicast object of others. */
#define CGPU_EXPORTED_UNSEEN (UINT64_C(1) << 63)

struct cgpu_slot {
    uint64_t state;      /* ATOMIC: generation << 8 | CGPU_SLOT_* */
    uint32_t pid;        /* in the container's own PID namespace: for people, never a basis for signals */
    uint32_t reserved0;
    uint64_t since;      /* ATOMIC: when it went live, was found dead, or became an orphan */
    char comm[16];
    uint64_t acked;      /* ATOMIC: the gate word this process has last acknowledged */
    uint64_t opened_handles;    /* ATOMIC: bits of the handles that this process has open */
    uint64_t exported_handles;      /* ATOMIC: bits of the handles by which others may hold what this process exported; CGPU_EXPORTED_* */
    uint32_t counter[CGPU_COUNTERS]; /* ATOMIC: how often each counted reason happened (shm/src/reason.rs names them) */
};

struct cgpu_interval {
    uint64_t start;
    uint64_t end;
};

/* A cell's `held`: bits 42..0 the bytes in use; bits 62..43 the cached part, in steps of 512 bytes, which the process gave back and may
 * take again without the GPU's lock while bit 63 is set; for others it counts as in use until they need it and clear both. */
#define CGPU_HELD_USED(held) ((held) & ((UINT64_C(1) << 43) - 1))
#define CGPU_HELD_CACHED(held) ((((held) & ~CGPU_HELD_OPEN) >> 43) * 512)
#define CGPU_HELD_OPEN (UINT64_C(1) << 63)

/* What one process does on one GPU. */
struct cgpu_cell {
    uint64_t held;       /* ATOMIC: charged bytes, also those of calls now in the driver, and cached ones: CGPU_HELD_* */
    uint64_t implicit;   /* ATOMIC: contexts, modules, slack; part of the container's use, shown apart */
    uint64_t peak;       /* ATOMIC: greatest used + implicit */
    uint64_t limit_word;     /* ATOMIC: the limit + (unaccounted_epoch << 44) under which `held` was opened */
    uint64_t waiting;    /* ATOMIC: threads now held at the gate */
    uint32_t creating;   /* ATOMIC: calls now in the driver that may change what `implicit` should say: contexts, modules, limits */
    uint32_t implicit_epoch;     /* ATOMIC: counts what gave implicit memory back: `unaccounted` speaks of what there was at its count */
    uint32_t charges;    /* ATOMIC: changes with every charge (two at once may change it once): a watcher learns that there were any */
    uint32_t checkpointed;      /* ATOMIC: not 0: the process is checkpointed, and of what the cell says only `exported` is on the GPU; others set it */
    uint64_t exported;   /* ATOMIC: the part of the bytes in use that others may hold too: it outlives this process */

    uint64_t busy;       /* ATOMIC: settled GPU time, only ever grows */
    uint64_t inflight;   /* ATOMIC: estimated GPU time launched and not settled */
    uint64_t launches;   /* ATOMIC: counted when measured, only ever grows */
    uint64_t active;     /* ATOMIC: when it last launched, as far as the slow path saw */
    uint64_t turn;       /* ATOMIC: the turn word it launches under */
    uint64_t first;      /* ATOMIC: start of the first work of this turn, 0: none yet */
    uint64_t last;       /* ATOMIC: end of the last settled work */
    uint64_t spent;      /* ATOMIC: GPU time of the turn in `turn`, settled and in flight */

    uint64_t sequence;   /* ATOMIC: intervals published so far; interval n is at n % CGPU_INTERVALS */
    struct cgpu_interval interval[CGPU_INTERVALS];
    uint64_t ends;       /* ATOMIC: when what is in flight is predicted to have run */
};

struct cgpu_use {
    struct cgpu_use_header header;
    struct cgpu_slot slot[CGPU_SLOTS];
    struct cgpu_cell cell[CGPU_GPUS][CGPU_SLOTS];
};

/* ---- file `grant` ----------------------------------------------------------------------------------------------------- */

/* Turn states, the low byte of cgpu_grant_gpu.turn; the rest is an epoch that only grows. */
#define CGPU_TURN_OPEN 0u   /* uncontended, native policy, or no monitor: launch freely, nothing is metered */
#define CGPU_TURN_YOURS 1u  /* contended, the turn is this container's: launch, metered and bounded */
#define CGPU_TURN_WAIT 2u   /* contended, another container's turn: wait for the gate word to change */

struct cgpu_grant_gpu {
    uint64_t turn;       /* ATOMIC: epoch << 8 | CGPU_TURN_* */
    uint64_t budget;    /* ATOMIC: GPU time of this turn */
    uint64_t until;      /* ATOMIC: when the turn is expected to end */
    uint64_t limit;      /* ATOMIC: memory limit; 0: as registered in `use` */
    uint32_t notify_slot;      /* ATOMIC: slot that should ring when its work runs out; CGPU_SLOTS: none */
    uint32_t policy;     /* ATOMIC: 0..5 */
    uint32_t weight;     /* ATOMIC */
    uint32_t share;      /* ATOMIC: set share in thousandths of a percent, for people */
    uint64_t busy;       /* ATOMIC: GPU time in the monitor's accounting, for people */
    uint32_t beside;     /* ATOMIC: how many other containers' work runs at the same time */
    uint32_t unaccounted_epoch;   /* ATOMIC: changes after any of the GPU's `unaccounted` has risen (release): cached parts are to be compared anew */
    uint64_t bound;      /* ATOMIC: most predicted work that may be in flight; 0: 500 us in a turn, any while open */
    uint64_t confirmed[4]; /* ATOMIC, a bit a slot: its process's implicit memory, with its `unaccounted`, is what NVML measures. Cleared before a `unaccounted` of which that is not so */
    uint64_t returned;   /* ATOMIC: `withdrawn` + exported memory that has left the GPU; less: none */
    uint32_t measured;   /* ATOMIC: share of the last second in thousandths of a percent, + 1; CGPU_ESTIMATE set: an estimate; 0: not metered. For people */
    uint32_t reserved0[3];
};
#define CGPU_ESTIMATE (1u << 31)

/* A device of the host, as NVML tells the monitor: a GPU, or an instance of one (MIG). A container's process need not start NVML for it. */
struct cgpu_device {
    uint8_t uuid[16];
    uint32_t total;      /* ATOMIC: its memory, in steps of CGPU_DEVICE_STEP */
    uint32_t free;       /* ATOMIC: what of it was free at `grant.sampled`, in the same steps; CGPU_DEVICE_UNKNOWN: not told */
    uint32_t order;      /* ATOMIC: NVML's index << 4 | an instance's place on its GPU from 1, 0: the whole GPU; CGPU_DEVICE_PARTITIONED */
    uint32_t reserved0;
};
#define CGPU_DEVICE_STEP 4096
#define CGPU_DEVICE_UNKNOWN UINT32_C(0xffffffff)
/* In `order`: the GPU is partitioned into instances, so no program computes on it; its instances are devices of their own. */
#define CGPU_DEVICE_PARTITIONED UINT32_C(0x80000000)

/* grant.devices: how many of `device` count, in the low 8 bits; 0: not told, or being rewritten. The rest changes when the list does. */
#define CGPU_DEVICES_COUNT(word) ((word) & 0xff)

/* grant.process: the low half of the slot's generation << 32 | the process's id on the host; 0: not known. */
#define CGPU_PROCESS_HOST_PID(word) ((uint32_t)(word))

/* grant.unaccounted: what a process has on a GPU beyond its cell (below 0: short of it), as NVML tells; in steps of 512 bytes in the lower
 * 40 bits (two's complement), above them the low 8 bits of the cell's `implicit_epoch` and, topmost, the low 16 of the slot's generation. It counts
 * while both are still so, and never takes more away than the cell's `implicit` and `exported`. */
#define CGPU_UNACCOUNTED_STEPS(word) ((int64_t)((word) << 24) >> 24)
#define CGPU_UNACCOUNTED_STEP 512

struct cgpu_grant {
    uint32_t version;    /* ATOMIC, written last (release) */
    uint32_t magic;      /* CGPU_GRANT_MAGIC */
    uint64_t size;
    uint64_t heartbeat;  /* ATOMIC: changes at least every 250 ms while a monitor lives; timed by the reader */
    uint64_t monitor;    /* ATOMIC: which monitor, 0: never had one */
    uint64_t reserved0[4];
    uint32_t gate;       /* ATOMIC futex: changes whenever something for this container's launches does. 0: open */
    uint32_t reserved1[15];
    uint32_t notify_requested;     /* ATOMIC: not 0: write one byte to `doorbell` */
    uint32_t devices;    /* ATOMIC, written after the list (release): CGPU_DEVICES_COUNT */
    uint64_t sampled;    /* ATOMIC, written after every `free` (release): when NVML was asked for them; 0: never */
    uint64_t pid_namespace; /* ATOMIC: inode of the monitor's PID namespace: a process in it sees the devices that the monitor sees. 0: not known */
    uint8_t reserved2[104];
    struct cgpu_device device[CGPU_DEVICES];
    struct cgpu_grant_gpu gpu[CGPU_GPUS];
    uint64_t drained[CGPU_SLOTS]; /* ATOMIC: the state word of a draining slot whose memory the monitor has seen go */
    uint64_t process[CGPU_SLOTS]; /* ATOMIC: the slot's process on the host: CGPU_PROCESS_* */
    uint64_t unaccounted[CGPU_GPUS][CGPU_SLOTS]; /* ATOMIC: CGPU_UNACCOUNTED_* */
};

/* ---- the layout, checked ---------------------------------------------------------------------------------------------- */

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define CGPU_ASSERT(what) _Static_assert(what, #what)
#elif defined(__cplusplus) && __cplusplus >= 201103L
#define CGPU_ASSERT(what) static_assert(what, #what)
#else
#define CGPU_ASSERT(what)
#endif

CGPU_ASSERT(sizeof(struct cgpu_gpu) == 128);
CGPU_ASSERT(offsetof(struct cgpu_gpu, lock) == 64);
CGPU_ASSERT(sizeof(struct cgpu_use_header) == 4096);
CGPU_ASSERT(offsetof(struct cgpu_use_header, gpu) == 2048);
CGPU_ASSERT(sizeof(struct cgpu_slot) == 256);
CGPU_ASSERT(offsetof(struct cgpu_slot, counter) == 64);
CGPU_ASSERT(sizeof(struct cgpu_cell) == 256);
CGPU_ASSERT(offsetof(struct cgpu_cell, busy) == 64);
CGPU_ASSERT(offsetof(struct cgpu_cell, sequence) == 128);
CGPU_ASSERT(offsetof(struct cgpu_use, slot) == 4096);
CGPU_ASSERT(offsetof(struct cgpu_use, cell) == 69632);
CGPU_ASSERT(sizeof(struct cgpu_use) == 1118208);
CGPU_ASSERT(sizeof(struct cgpu_grant_gpu) == 128 + 0);
CGPU_ASSERT(offsetof(struct cgpu_grant, gate) == 64);
CGPU_ASSERT(offsetof(struct cgpu_grant, notify_requested) == 128);
CGPU_ASSERT(sizeof(struct cgpu_device) == 32);
CGPU_ASSERT(offsetof(struct cgpu_grant, device) == 256);
CGPU_ASSERT(offsetof(struct cgpu_grant, gpu) == 2048);
CGPU_ASSERT(offsetof(struct cgpu_grant, drained) == 4096);
CGPU_ASSERT(offsetof(struct cgpu_grant, unaccounted) == 8192);
CGPU_ASSERT(sizeof(struct cgpu_grant) == 40960);

#endif
