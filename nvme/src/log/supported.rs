//! Which log pages and which features there are: logs 00h and 12h (Base 2.0, sections 5.16.1.1 and
//! 5.16.1.18), each one dword for every identifier.

use crate::identify::layout::Wire;

/// Bytes of either log.
pub const SUPPORTED_BYTES: usize = 1024;

const _: () = assert!(<[u32; 256]>::BYTES == SUPPORTED_BYTES);

/// The Supported Log Pages log: a dword for each log page identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportedLogPages(pub [u32; 256]);

impl SupportedLogPages {
    /// LSUPP: the page is supported.
    pub const SUPPORTED: u32 = 1 << 0;

    /// IOS: the offset into the page may count entries instead of bytes.
    pub const INDEX_OFFSET: u32 = 1 << 1;

    /// Of log 0Dh: a context can be established and 512 bytes of header be read at once.
    pub const ESTABLISH_AND_READ_HEADER: u32 = 1 << 16;
}

/// The Feature Identifiers Supported and Effects log: a dword for each feature identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureEffects(pub [u32; 256]);

impl FeatureEffects {
    /// FSUPP: the feature is supported.
    pub const SUPPORTED: u32 = 1 << 0;

    /// UDCC: setting it may change data.
    pub const CONTENT_CHANGE: u32 = 1 << 1;

    /// NCC: setting it may change the capabilities of a namespace.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;

    /// FSP: every namespace has its own value.
    pub const NAMESPACE_SCOPE: u32 = 1 << 20;

    /// FSP: every controller has its own value.
    pub const CONTROLLER_SCOPE: u32 = 1 << 21;
}

macro_rules! dwords {
    ($($name:ident)*) => {
        $(
            impl $name {
                /// The page.
                #[must_use]
                pub fn encode(&self) -> [u8; SUPPORTED_BYTES] {
                    let mut page = [0; SUPPORTED_BYTES];
                    self.0.put(&mut page);
                    page
                }

                /// Reads a page; `None` if it is shorter than 1024 bytes.
                #[must_use]
                pub fn decode(bytes: &[u8]) -> Option<Self> {
                    Some(Self(Wire::take(bytes.get(..SUPPORTED_BYTES)?)))
                }
            }

            impl Default for $name {
                /// Nothing is supported.
                fn default() -> Self {
                    Self([0; 256])
                }
            }
        )*
    };
}

dwords!(SupportedLogPages FeatureEffects);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_log_page_stands_at_four_times_its_identifier() {
        let mut pages = SupportedLogPages::default();
        pages.0[0x0d] = SupportedLogPages::SUPPORTED | SupportedLogPages::ESTABLISH_AND_READ_HEADER;
        assert_eq!(pages.encode()[0x34..0x38], [1, 0, 1, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 1020..1030),
        ) {
            let enough = bytes.len() >= SUPPORTED_BYTES;
            prop_assert_eq!(SupportedLogPages::decode(&bytes).is_some(), enough);
            if let Some(features) = FeatureEffects::decode(&bytes) {
                prop_assert_eq!(&features.encode()[..], &bytes[..SUPPORTED_BYTES]);
            }
        }
    }
}
