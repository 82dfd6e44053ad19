"""Images of one data set brought to the shape of another, to be strangers to its networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from bayesify.data.dataset import TensorData


def fitted(data: TensorData, shape: Sequence[int]) -> TensorData:
    """Return the examples in another shape: grey becomes colour, and a dark frame fills up.

    No pixel is made up or lost, so a network cannot tell a stranger by its blur. They are read
    as before: `with_transform` gives them the transform of the network's own data.

    Args:
        data: Images of (channels, height, width).
        shape: Channels, height and width to bring them to.

    Raises:
        ValueError: They are too large, or have other channels and are not grey.
    """
    own, wanted = tuple(data.inputs.shape[1:]), tuple(shape)
    if own == wanted:
        return data
    if len(own) != 3 or len(wanted) != 3 or own[0] not in (1, wanted[0]):
        raise ValueError(
            "data must hold images of (channels, height, width), grey or with as many channels as "
            f"shape has, to be brought to {wanted}, got {own}"
        )
    above, beside = wanted[1] - own[1], wanted[2] - own[2]
    if above < 0 or beside < 0:
        raise ValueError(
            f"data must hold images no larger than shape {wanted}, got {own}: crop or scale them "
            "first"
        )
    frame = (beside // 2, beside - beside // 2, above // 2, above - above // 2)
    images: Tensor = F.pad(data.inputs, frame).expand(-1, wanted[0], -1, -1).contiguous()
    return TensorData(images, data.targets, data.transform, data.augmentation)
