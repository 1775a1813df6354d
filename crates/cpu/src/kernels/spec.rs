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

/// Picks `$kernel::<Spec, ROWS, PANELS>` for an integer kind, `$dense::<ROWS, PANELS>(float)` for a dense one.
macro_rules! select {
    ($kind:expr, $rows:expr, $panels:expr, $kernel:ident, $dense:ident) => {{
        use $crate::kernels::{Kernel, spec};
        macro_rules! rows {
            ($spec:ty) => {
                match ($rows, $panels) {
                    (1, 1) => $kernel::<$spec, 1, 1> as Kernel,
                    (2, 1) => $kernel::<$spec, 2, 1>,
                    (3, 1) => $kernel::<$spec, 3, 1>,
                    (4, 1) => $kernel::<$spec, 4, 1>,
                    (5, 1) => $kernel::<$spec, 5, 1>,
                    (6, 1) => $kernel::<$spec, 6, 1>,
                    (7, 1) => $kernel::<$spec, 7, 1>,
                    (8, 1) => $kernel::<$spec, 8, 1>,
                    (8, 2) => $kernel::<$spec, 8, 2>,
                    (rows, panels) => unreachable!("no kernel takes {rows} rows and {panels} panels"),
                }
            };
        }
        macro_rules! dense_rows {
            ($float:expr, $count:literal) => {
                match $rows {
                    1 => $dense::<1, $count>($float),
                    2 => $dense::<2, $count>($float),
                    3 => $dense::<3, $count>($float),
                    4 => $dense::<4, $count>($float),
                    5 => $dense::<5, $count>($float),
                    6 => $dense::<6, $count>($float),
                    7 => $dense::<7, $count>($float),
                    8 => $dense::<8, $count>($float),
                    rows => unreachable!("no tile has {rows} rows"),
                }
            };
        }
        match $kind {
            PanelKind::Mxfp4 => rows!(spec::Mxfp4),
            PanelKind::Q4_0 => rows!(spec::Q4_0),
            PanelKind::Q5_0 => rows!(spec::Q5_0),
            PanelKind::Q8_0 => rows!(spec::Q8_0),
            PanelKind::Iq4Nl => rows!(spec::Iq4Nl),
            PanelKind::Iq4Xs => rows!(spec::Iq4Xs),
            PanelKind::Q2_K => rows!(spec::Q2_K),
            PanelKind::Q3_K => rows!(spec::Q3_K),
            PanelKind::Q4_K => rows!(spec::Q4_K),
            PanelKind::Q5_K => rows!(spec::Q5_K),
            PanelKind::Q6_K => rows!(spec::Q6_K),
            PanelKind::Affine { bits: 4, group: 32, scales: Float::F16 } => rows!(spec::Halves32<4>),
            PanelKind::Affine { bits: 5, group: 32, scales: Float::F16 } => rows!(spec::Halves32<5>),
            PanelKind::Affine { bits: 2, .. } => rows!(spec::Affine<2>),
            PanelKind::Affine { bits: 3, .. } => rows!(spec::Affine<3>),
            PanelKind::Affine { bits: 4, .. } => rows!(spec::Affine<4>),
            PanelKind::Affine { bits: 5, .. } => rows!(spec::Affine<5>),
            PanelKind::Affine { bits: 6, .. } => rows!(spec::Affine<6>),
            PanelKind::Affine { .. } => rows!(spec::Affine<8>),
            PanelKind::Dense(float) if $panels == 2 => dense_rows!(float, 2),
            PanelKind::Dense(float) => dense_rows!(float, 1),
        }
    }};
}
pub(crate) use select;
