//! The tables: which crate may use which, and which room of a crate may use which others.

/// Who may use whom. A folder that is missing here may use nothing of ours.
pub(crate) const ARROWS: &[(&str, &[&str])] = &[
    ("reactor", &[]),
    ("nvme", &[]),
    ("roce", &[]),
    ("power-cut", &[]),
    ("streams", &[]),
    ("meta", &["power-cut"]),
    ("drives", &["reactor"]),
    ("dedup", &["meta", "drives", "reactor"]),
    ("fabric", &["nvme", "roce", "reactor"]),
    ("initiator", &["fabric", "nvme", "reactor"]),
    (
        "fabric-drives",
        &["drives", "initiator", "fabric", "nvme", "reactor"],
    ),
    (
        "bench",
        &[
            "initiator",
            "fabric",
            "nvme",
            "dedup",
            "meta",
            "drives",
            "reactor",
        ],
    ),
    (
        "subsystem",
        // `initiator` and `drives` are for its tests alone.
        &[
            "initiator",
            "dedup",
            "meta",
            "drives",
            "fabric",
            "nvme",
            "reactor",
            "streams",
        ],
    ),
    (
        "virtio",
        // `dedup`, `drives` and `meta` are for its tests alone.
        &["subsystem", "reactor", "dedup", "drives", "meta"],
    ),
    (
        "nbd",
        // As above.
        &["subsystem", "reactor", "dedup", "drives", "meta"],
    ),
    (
        "api",
        &[
            "subsystem",
            "dedup",
            "meta",
            "fabric",
            "nvme",
            "reactor",
            "streams",
        ],
    ),
    (
        "onefold",
        &[
            "virtio",
            "nbd",
            "subsystem",
            "streams",
            "api",
            "dedup",
            "meta",
            "drives",
            "fabric",
            "nvme",
            "reactor",
            "initiator",
            "fabric-drives",
            "bench",
        ],
    ),
    (
        "tests",
        &[
            "onefold",
            "initiator",
            "fabric",
            "meta",
            "nvme",
            "reactor",
            "roce",
            "streams",
        ],
    ),
    ("fuzz", &["dedup", "meta", "nbd", "nvme", "roce", "streams"]),
];

/// The rooms of a crate: the folders and files right below its `src/`. What is declared for tests alone is no room.
pub(crate) struct House {
    /// The crate's sources, from the root of the tree.
    pub(crate) src: &'static str,
    /// Rooms that every room may use: errors, constants, small tools.
    pub(crate) ground: &'static [&'static str],
    /// Each other room, and the rooms that it may use besides those.
    pub(crate) rooms: &'static [(&'static str, &'static [&'static str])],
    /// Rooms in which nothing waits: no `async`, no `.await`.
    pub(crate) never_wait: &'static [&'static str],
    /// Types whose methods stand in the rooms that they are about.
    pub(crate) spread: &'static [&'static str],
}

/// Every crate whose modules have a direction. A room that is missing in a table may use the ground only.
pub(crate) const HOUSES: &[House] = &[FABRIC, DEDUP, SUBSYSTEM, API, PROGRAM];

/// Transports: what all have lies at the bottom, the queues and the connector over them at the top.
const FABRIC: House = House {
    src: "fabric/src",
    ground: &["address", "error", "memory", "peer_log", "waiters"],
    rooms: &[
        ("admission", &[]),
        ("listening", &[]),
        ("provider", &[]),
        ("queue", &[]),
        ("soft", &["listening", "provider"]),
        ("verbs", &["listening", "provider"]),
        ("device", &["provider", "soft", "verbs"]),
        ("rdma", &["admission", "provider", "device", "queue"]),
        ("tcp", &["admission", "queue"]),
        ("connector", &["device", "tcp"]),
        ("host_queue", &["queue", "rdma", "tcp", "connector"]),
        ("target_queue", &["queue", "rdma", "tcp"]),
    ],
    never_wait: &["error", "provider"],
    spread: &[],
};

const DEDUP: House = House {
    src: "dedup/src",
    ground: &["ablation", "error", "hooks", "ranges", "stages"],
    rooms: &[
        ("sync", &[]),
        ("content", &[]),
        ("drive_io", &["content"]),
        ("metadata", &["sync", "content"]),
        ("pool", &["sync", "content", "drive_io", "metadata"]),
        (
            "residency",
            &["sync", "content", "drive_io", "metadata", "pool"],
        ),
        (
            "log",
            &[
                "sync",
                "content",
                "drive_io",
                "metadata",
                "pool",
                "residency",
            ],
        ),
        (
            "io",
            &[
                "sync",
                "content",
                "drive_io",
                "metadata",
                "pool",
                "residency",
                "log",
            ],
        ),
        (
            "background",
            &[
                "sync",
                "content",
                "drive_io",
                "metadata",
                "pool",
                "residency",
                "log",
                "io",
            ],
        ),
        (
            "volumes",
            &[
                "sync",
                "content",
                "drive_io",
                "metadata",
                "pool",
                "residency",
                "log",
                "io",
            ],
        ),
        (
            "offline",
            &["content", "drive_io", "metadata", "pool", "log"],
        ),
        (
            "engine",
            &[
                "sync",
                "content",
                "drive_io",
                "metadata",
                "pool",
                "residency",
                "log",
                "io",
                "background",
                "volumes",
            ],
        ),
    ],
    never_wait: &["content", "metadata"],
    spread: &[],
};

const SUBSYSTEM: House = House {
    src: "subsystem/src",
    ground: &[
        "errors", "lock", "limits", "queue", "latency", "throttle", "counters", "figures", "trace",
    ],
    rooms: &[
        ("catalog", &[]),
        ("reservation", &[]),
        ("auth", &["catalog"]),
        ("admission", &["catalog", "reservation"]),
        ("controller", &["catalog", "reservation"]),
        (
            "target",
            &["catalog", "reservation", "auth", "admission", "controller"],
        ),
        (
            "connected_queue",
            &[
                "catalog",
                "reservation",
                "auth",
                "admission",
                "controller",
                "target",
            ],
        ),
        (
            "commands",
            &[
                "catalog",
                "reservation",
                "auth",
                "admission",
                "controller",
                "target",
                "connected_queue",
            ],
        ),
        (
            "serve",
            &[
                "catalog",
                "auth",
                "controller",
                "target",
                "connected_queue",
                "commands",
            ],
        ),
    ],
    never_wait: &["admission"],
    spread: &[],
};

const API: House = House {
    src: "api/src",
    ground: &[
        "errors",
        "extract",
        "caller",
        "socket",
        "client",
        "event_log",
        "history_log",
        "rates",
        "task_list",
        "refused",
        "server",
    ],
    rooms: &[
        ("transfers", &[]),
        ("tasks", &["transfers"]),
        ("volumes", &["tasks"]),
        ("images", &["volumes", "tokens", "transfers"]),
        ("known", &["hosts", "images", "volumes"]),
        ("reservations", &["volumes"]),
        ("snapshots", &["tasks", "volumes"]),
        ("snapshot_schedules", &["snapshots", "volumes"]),
        ("health", &[]),
        ("limits", &["volumes"]),
        ("status", &["volumes", "health", "listeners", "limits"]),
        ("metrics", &["status", "scrub"]),
        ("telemetry", &["metrics"]),
        ("http", &[]),
        ("scrub", &["tasks"]),
        ("pool", &["tasks"]),
        ("drives", &[]),
        ("namespaces", &[]),
        ("subsystems", &["namespaces"]),
        ("referrals", &[]),
        ("hosts", &[]),
        ("listeners", &[]),
        ("exports", &[]),
        ("ana", &[]),
        ("events", &[]),
        ("trace", &[]),
        ("tokens", &[]),
        ("openapi", &[]),
        ("history", &[]),
        ("dashboard", &[]),
        ("operations", &["tokens"]),
        ("access", &["operations", "tokens"]),
        ("audit", &["hosts", "listeners", "tokens"]),
        ("config", &["hosts", "scrub", "snapshot_schedules", "audit"]),
    ],
    never_wait: &[],
    spread: &["Client", "Lane"],
};

/// The program: what the machine has at the bottom, the options over it, then the daemon, and the command line at the top.
const PROGRAM: House = House {
    src: "target/src",
    ground: &[
        "descriptors",
        "exit",
        "machine",
        "notify",
        "output",
        "recorder",
        "signals",
        "size",
        "time",
    ],
    rooms: &[
        ("control_socket", &[]),
        ("images", &[]),
        ("mdns", &[]),
        ("lingering", &[]),
        ("exports", &["lingering"]),
        ("listen", &["lingering"]),
        ("listeners", &["lingering", "listen", "mdns"]),
        ("announcement", &["listeners"]),
        ("logging", &[]),
        ("room", &[]),
        ("doctor", &["room"]),
        ("options", &["control_socket", "logging"]),
        ("config", &["options"]),
        ("http", &["options"]),
        ("telemetry", &["options"]),
        ("errors", &[]),
        ("labels", &["errors"]),
        ("opened_drive", &[]),
        (
            "pool",
            &[
                "errors",
                "labels",
                "lingering",
                "opened_drive",
                "options",
                "room",
            ],
        ),
        (
            "drive_changes",
            &["opened_drive", "options", "pool", "room"],
        ),
        ("records", &["pool"]),
        (
            "serve",
            &[
                "announcement",
                "config",
                "control_socket",
                "drive_changes",
                "exports",
                "http",
                "listen",
                "listeners",
                "logging",
                "mdns",
                "options",
                "pool",
                "records",
                "telemetry",
            ],
        ),
        (
            "cli",
            &[
                "config",
                "doctor",
                "images",
                "labels",
                "logging",
                "opened_drive",
                "options",
                "serve",
            ],
        ),
    ],
    never_wait: &["config", "doctor", "options"],
    spread: &[],
};
