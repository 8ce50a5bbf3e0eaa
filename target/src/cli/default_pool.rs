//! The pool that commands use when nobody names one: `./onefold-data` where that is; or else, on a node that a package
//! installed, the pool of its configuration file.

use std::path::Path;
use std::sync::LazyLock;

use crate::options::DEFAULT_POOL;

/// The configuration file of an installed node.
pub(crate) const NODE_CONFIG: &str = "/etc/onefold/onefold.toml";

/// The pool's folder.
pub(crate) fn default_pool() -> &'static str {
    static POOL: LazyLock<String> = LazyLock::new(|| {
        let is_here = Path::new(DEFAULT_POOL).exists();
        let node = std::fs::read_to_string(NODE_CONFIG).ok();
        let node = node.filter(|_| !is_here);
        node.and_then(|text| pool_of(&text))
            .unwrap_or_else(|| DEFAULT_POOL.to_owned())
    });
    &POOL
}

/// The pool that a configuration file names. `onefold config check` tells of mistakes, not every command.
fn pool_of(text: &str) -> Option<String> {
    let file: toml::Table = text.parse().ok()?;
    Some(file.get("pool")?.get("dir")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_of_a_node_is_what_its_file_names() {
        let named = pool_of("[log]\nfilter = 'info'\n[pool]\ndir = '/srv/pool'\n");
        assert_eq!(named.as_deref(), Some("/srv/pool"));
        for text in [
            "",
            "[pool]\n",
            "[pool]\ndir = 7\n",
            "pool = 3\n",
            "not TOML",
        ] {
            assert_eq!(pool_of(text), None, "{text}");
        }
    }
}
