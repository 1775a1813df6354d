//! Kinds of panels as types, so that each gets a kernel of its own.

use crate::panels::{PanelKind, Shape};
use turbospark_formats::Float;

/// An integer kind that is known when the kernel is compiled.
pub(crate) trait Spec {
    /// The structure.
    const SHAPE: Shape;
    /// Whether the head's type and the blocks of a group are only known when it runs.
    const DYNAMIC: bool = false;

    /// The structure of a task's panel, constant unless the spec is dynamic.
    #[inline(always)]
    fn shape(kind: PanelKind) -> Shape {
        match kind.shape() {
            Some(Shape { head, head_blocks, unit, .. }) if Self::DYNAMIC => {
                Shape { head, head_blocks, unit, ..Self::SHAPE }
            }
            _ => Self::SHAPE,
        }
    }
}

macro_rules! specs {
    ($($name:ident),*) => {
        $(
            /// The kind of this name.
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;
            impl Spec for $name {
                const SHAPE: Shape = PanelKind::$name.shape().unwrap();
            }
        )*
    };
}

specs!(Mxfp4, Q4_0, Q5_0, Q8_0, Iq4Nl, Iq4Xs, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K);

/// [`PanelKind::Affine`] of one width.
pub(crate) struct Affine<const BITS: u8>;

impl<const BITS: u8> Spec for Affine<BITS> {
    const SHAPE: Shape = PanelKind::Affine { bits: BITS, group: 64, scales: Float::F16 }.shape().unwrap();
    const DYNAMIC: bool = true;
}

/// The same with the scales of Q4_1 and Q5_1.
pub(crate) struct Halves32<const BITS: u8>;

impl<const BITS: u8> Spec for Halves32<BITS> {
    const SHAPE: Shape = PanelKind::Affine { bits: BITS, group: 32, scales: Float::F16 }.shape().unwrap();
}

/// Picks `$kernel::<Spec $(, arguments)*>` for an integer kind.
macro_rules! select_spec {
    ($kind:expr, $kernel:ident $(, $argument:literal)*) => {{
        use turbospark_formats::Float;
        use $crate::kernels::{Kernel, spec};
        match $kind {
            PanelKind::Mxfp4 => $kernel::<spec::Mxfp4 $(, $argument)*> as Kernel,
            PanelKind::Q4_0 => $kernel::<spec::Q4_0 $(, $argument)*>,
            PanelKind::Q5_0 => $kernel::<spec::Q5_0 $(, $argument)*>,
            PanelKind::Q8_0 => $kernel::<spec::Q8_0 $(, $argument)*>,
            PanelKind::Iq4Nl => $kernel::<spec::Iq4Nl $(, $argument)*>,
            PanelKind::Iq4Xs => $kernel::<spec::Iq4Xs $(, $argument)*>,
            PanelKind::Q2_K => $kernel::<spec::Q2_K $(, $argument)*>,
            PanelKind::Q3_K => $kernel::<spec::Q3_K $(, $argument)*>,
            PanelKind::Q4_K => $kernel::<spec::Q4_K $(, $argument)*>,
            PanelKind::Q5_K => $kernel::<spec::Q5_K $(, $argument)*>,
            PanelKind::Q6_K => $kernel::<spec::Q6_K $(, $argument)*>,
            PanelKind::Affine { bits: 4, group: 32, scales: Float::F16 } => {
                $kernel::<spec::Halves32<4> $(, $argument)*>
            }
            PanelKind::Affine { bits: 5, group: 32, scales: Float::F16 } => {
                $kernel::<spec::Halves32<5> $(, $argument)*>
            }
            PanelKind::Affine { bits: 2, .. } => $kernel::<spec::Affine<2> $(, $argument)*>,
            PanelKind::Affine { bits: 3, .. } => $kernel::<spec::Affine<3> $(, $argument)*>,
            PanelKind::Affine { bits: 4, .. } => $kernel::<spec::Affine<4> $(, $argument)*>,
            PanelKind::Affine { bits: 5, .. } => $kernel::<spec::Affine<5> $(, $argument)*>,
            PanelKind::Affine { bits: 6, .. } => $kernel::<spec::Affine<6> $(, $argument)*>,
            PanelKind::Affine { .. } => $kernel::<spec::Affine<8> $(, $argument)*>,
            PanelKind::Dense(_) => unreachable!("dense kinds have kernels of their own"),
        }
    }};
}
pub(crate) use select_spec;
