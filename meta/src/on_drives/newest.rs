//! Which areas have the newest metadata of a pool.

use std::sync::Arc;

use uuid::Uuid;

use super::area::MetadataArea;
use super::layout::Superblock;
use crate::error::MetaError;

/// An area, and what it says of itself.
pub(super) type Told = (Arc<dyn MetadataArea>, Superblock);

/// The members of the newest generation.
pub(super) struct Newest {
    /// Those that are among the areas, at least one.
    pub(super) found: Vec<Told>,
    /// Indexes of drives that hold the same or newer metadata, and are not among the areas.
    pub(super) missing: Vec<u16>,
    /// How many members there are.
    pub(super) members: usize,
    /// Indexes of those that are here with a superblock, of this generation or an earlier one.
    pub(super) known: Vec<u16>,
}

/// Which of these drives hold the newest metadata of `pool`, by their indexes, and how many hold it in all. Blocks.
///
/// # Errors
/// [`MetaError::Missing`] if none does.
pub fn holders(
    pool: Uuid,
    areas: &[(u16, Arc<dyn MetadataArea>)],
) -> Result<(Vec<u16>, usize), MetaError> {
    let Newest { known, members, .. } = Newest::among(pool, areas)?;
    Ok((known, members))
}

impl Newest {
    /// Looks for the metadata of `pool` in these areas, each with the index of its drive. Blocks.
    ///
    /// # Errors
    /// [`MetaError::Missing`] if there is none.
    pub(super) fn among(
        pool: Uuid,
        areas: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<Self, MetaError> {
        let mut found = Vec::new();
        let mut unreadable = Vec::new();
        let mut looked_at = Vec::new();
        let mut with_superblock = Vec::new();
        for (index, area) in areas {
            let superblock = Superblock::read(&**area);
            if superblock.is_ok() {
                looked_at.push(*index);
            }
            match superblock {
                Ok(Some(superblock)) if superblock.pool == pool && superblock.index == *index => {
                    with_superblock.push(*index);
                    found.push((area.clone(), superblock));
                }
                Ok(_) => {}
                Err(error) => unreadable.push(format!("{}: {error}", area.name())),
            }
        }
        let newest = found.iter().map(|(_, found)| found.generation).max();
        found.retain(|(_, superblock)| {
            Some(superblock.generation) == newest && superblock.members.contains(&superblock.index)
        });
        let Some((_, first)) = found.first() else {
            let name = areas
                .first()
                .map_or_else(String::new, |(_, area)| area.name());
            let mut remedy = "the drives that were named hold none of the pool's metadata: name all of its drives, \
                              or restore a backup of its folder"
                .to_owned();
            for unreadable in unreadable {
                remedy += &format!("; {unreadable}");
            }
            return Err(MetaError::missing(name, remedy));
        };
        let members = first.members.len();
        let known = first.members.iter();
        let known = known.filter(|member| with_superblock.contains(member));
        let known = known.copied().collect();
        // A drive that is here has nothing newer, also if the loss of power came before its superblock.
        let missing = first.members.iter();
        let missing = missing.filter(|member| !looked_at.contains(member));
        let missing = missing.copied().collect();
        Ok(Self {
            found,
            missing,
            members,
            known,
        })
    }
}
