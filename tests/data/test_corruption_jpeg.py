import io

import numpy
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from bayesify.data import corruptions
from bayesify.data.corruption_jpeg import jpeg


def smooth_image(num_channels, height, width):
    coarse = torch.rand(1, num_channels, 6, 6)
    image = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)[0]
    return image.mul(255).round().to(torch.uint8)


def by_pillow(image, quality):
    pixels = image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    file.seek(0)
    read = torch.from_numpy(numpy.array(Image.open(file))).double()
    return read.permute(2, 0, 1) if len(image) == 3 else read[None]


@pytest.mark.parametrize("quality", [10, 40, 50, 58, 65, 80, 95])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 28, 45), (1, 32, 32), (1, 28, 45)])
def test_jpeg_is_close_to_pillows(quality, shape):
    images = torch.stack([smooth_image(*shape) for _ in range(16)])
    expected = torch.stack([by_pillow(image, quality) for image in images])
    result = 255.0 * jpeg(images / 255.0, quality).double()
    torch.testing.assert_close(result, result.round(), rtol=0, atol=1e-3)
    off, loss = (result - expected).abs().mean(), (images - expected).abs().mean()
    # Pillow's arithmetic is in integers, so that single coefficients near a half are rounded the
    # other way; from quality 80 down the loss is many times that, so it is the loss that agrees.
    assert off < 0.3
    assert off < (0.1 if quality <= 80 else 0.2) * loss


def test_jpeg_compression_has_the_published_qualities():
    image = smooth_image(3, 32, 32)[None] / 255.0
    for severity, quality in enumerate((80, 65, 58, 50, 40), start=1):
        result = corruptions["jpeg_compression"](image, severity, torch.Generator())
        assert torch.equal(result, jpeg(image, quality))


def test_jpeg_of_quality_100_loses_a_grey_level_at_most_in_grey():
    image = torch.randint(0, 256, (2, 1, 16, 16)) / 255.0
    # Every step is 1, and a block's inverse transform of errors up to 1/2 is small in the mean.
    assert 255.0 * (jpeg(image, 100) - image).abs().mean() < 0.5
