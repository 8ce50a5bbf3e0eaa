//! Enumerations that are one byte on the wire: each value stands once, beside its meaning.

/// Declares an enumeration with the value of each variant, and both ways between them and bytes.
macro_rules! byte_enum {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$value_meta:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$value_meta])* $variant = $value,)*
        }

        impl $name {
            /// The value on the wire.
            #[must_use]
            pub const fn as_u8(self) -> u8 {
                self as u8
            }

            /// Reads the value from the wire; `None` for one that is not known here.
            #[must_use]
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> Self {
                value.as_u8()
            }
        }
    };
}

pub(crate) use byte_enum;
