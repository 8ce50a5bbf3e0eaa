//! Parsers take any input without a panic.

use fabric::TransportAddress;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_text_is_an_address_that_prints_and_reads_back_or_an_error(text in "(rdma://)?\\PC*") {
        if let Ok(address) = text.parse::<TransportAddress>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn every_address_reads_back(v6: bool, bytes: [u8; 16], port: u16) {
        let host = if v6 { std::net::IpAddr::from(bytes) } else { [bytes[0], 1, 2, bytes[3]].into() };
        let address = TransportAddress::rdma(host, port);
        prop_assert_eq!(address.to_string().parse(), Ok(address));
    }
}
