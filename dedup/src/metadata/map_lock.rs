//! A map as who has the state sees it: that of a volume is locked as long as it is looked at, a parent needs no lock of its own.
//!
//! Of one volume only one of these may live at a time on a thread.

use std::ops::{Deref, DerefMut};

use crate::metadata::page_map::PageMap;
use crate::sync::wait::Held;

/// A map to be looked at.
pub(crate) enum MapRef<'a> {
    /// A volume's.
    Head(Held<'a, PageMap>),
    /// A parent's.
    Parent(&'a PageMap),
}

impl Deref for MapRef<'_> {
    type Target = PageMap;

    fn deref(&self) -> &PageMap {
        match self {
            Self::Head(map) => map,
            Self::Parent(map) => map,
        }
    }
}

/// A map to be changed.
pub(crate) enum MapMut<'a> {
    /// A volume's.
    Head(Held<'a, PageMap>),
    /// A parent's.
    Parent(&'a mut PageMap),
}

impl Deref for MapMut<'_> {
    type Target = PageMap;

    fn deref(&self) -> &PageMap {
        match self {
            Self::Head(map) => map,
            Self::Parent(map) => map,
        }
    }
}

impl DerefMut for MapMut<'_> {
    fn deref_mut(&mut self) -> &mut PageMap {
        match self {
            Self::Head(map) => map,
            Self::Parent(map) => map,
        }
    }
}
