"""Images: only the newest that fit are sent."""

from sessiontree.model.request_images import MAX_TOTAL_IMAGE_BYTES, ImageFilter, RequestImage


def test_of_too_many_images_the_newest_are_sent() -> None:
    large = "A" * (MAX_TOTAL_IMAGE_BYTES // 5)
    messages = [
        {"role": "user", "content": [{"type": "image", "data": large, "mimeType": "image/png"}]} for _ in range(7)
    ]

    images = ImageFilter(messages, accepts_images=True)
    sent = [images.prepare(message["content"][0]) for message in messages]

    assert [isinstance(image, RequestImage) for image in sent] == [False, False, True, True, True, True, True]
    assert sent[0] == ("[An image was omitted here: the images of this request exceed 20 MB in total.]")
