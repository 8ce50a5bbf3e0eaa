//! Families of metrics on a page: what all samples of a name have in common is written once.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// What a family is called.
pub(super) struct Name {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
}

/// A family without a unit.
pub(super) fn plain(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: None,
        help,
    }
}

/// A family of bytes: the name gets `_bytes` behind it.
pub(super) fn bytes(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: Some(Unit::Bytes),
        help,
    }
}

/// A family of seconds: the name gets `_seconds` behind it.
pub(super) fn seconds(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: Some(Unit::Seconds),
        help,
    }
}

/// A page that is being written.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// A value that goes up and down.
    pub(super) fn gauge(&mut self, name: Name, value: impl EncodeGaugeValue) -> fmt::Result {
        let unit = name.unit.as_ref();
        let mut family = self
            .0
            .encode_descriptor(name.name, name.help, unit, MetricType::Gauge)?;
        family.encode_gauge(&value)
    }

    /// A value that only rises. `_total` comes behind its name.
    pub(super) fn counter(&mut self, name: Name, value: impl EncodeCounterValue) -> fmt::Result {
        let unit = name.unit.as_ref();
        let mut family =
            self.0
                .encode_descriptor(name.name, name.help, unit, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    /// The same value of several things.
    pub(super) fn gauges<'s, V: EncodeGaugeValue>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        let unit = name.unit.as_ref();
        let mut family = self
            .0
            .encode_descriptor(name.name, name.help, unit, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// The same count of several things.
    pub(super) fn counters<'s, V: EncodeCounterValue>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        let unit = name.unit.as_ref();
        let mut family =
            self.0
                .encode_descriptor(name.name, name.help, unit, MetricType::Counter)?;
        for (labels, value) in samples {
            let mut sample = family.encode_family(&labels)?;
            sample.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    /// The same times of several things.
    pub(super) fn histograms<'s>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, Times)>,
    ) -> fmt::Result {
        let unit = name.unit.as_ref();
        let mut family =
            self.0
                .encode_descriptor(name.name, name.help, unit, MetricType::Histogram)?;
        for (labels, times) in samples {
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(
                times.sum_seconds,
                times.buckets.iter().map(|(_, count)| count).sum(),
                &times.buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// How long several things took.
pub(super) struct Times {
    pub(super) sum_seconds: f64,
    /// Upper bounds in seconds, in their order, the last one infinite; and how many are above the bound before.
    pub(super) buckets: Vec<(f64, u64)>,
}
