"""Words that prompts are filled with: everyday lists by kind, and syllables of invented ones."""

from __future__ import annotations

ONSETS = (
    "b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh",
    "st", "t", "tr", "v", "w", "z",
)  # fmt: skip
NUCLEI = ("a", "e", "i", "o", "u")
CODAS = ("", "", "", "n", "l", "r", "s", "m")

WORDS: dict[str, tuple[str, ...]] = {
    kind: tuple(words.split())
    for kind, words in {
        "job": """baker carpenter dentist farmer gardener painter plumber teacher tailor surgeon
            pilot potter printer sailor singer welder waiter writer weaver barber butcher chemist
            cleaner clerk cook dancer designer driver editor engineer firefighter fisher florist
            glazier grocer guard hunter jeweller judge lawyer librarian mechanic miner musician
            nurse optician pharmacist photographer porter ranger roofer saddler shepherd smith
            soldier tanner translator vet watchmaker zookeeper""",
        "colour": """amber beige black blue bronze brown copper coral cream crimson gold green grey
            indigo ivory khaki lavender lemon lilac lime magenta maroon mauve mint navy ochre olive
            orange peach pearl pink plum purple red rose ruby rust salmon sand scarlet silver teal
            turquoise violet white yellow""",
        "animal": """badger bat bear beaver bee bison boar camel cat cheetah cobra cow crab crane
            crow deer dog dolphin donkey dove duck eagle eel elk falcon ferret finch fox frog goat
            goose hare hawk hedgehog heron horse hyena ibis jackal jaguar koala lark lemur leopard
            lion lizard lobster lynx magpie mole moose mouse newt otter owl panda parrot penguin
            pigeon puma rabbit raven robin seal shark sheep snail sparrow squid stork swan tiger
            toad trout turtle viper walrus wasp weasel whale wolf wombat wren yak zebra""",
        "food": """almonds apples apricots bacon bagels beans beetroot berries biscuits bread
            broccoli brownies butter cabbage carrots celery cheese cherries chips chocolate corn
            crackers cucumbers curry dates dumplings eggs figs fudge garlic grapes ham honey jam
            kale lamb leeks lemons lentils lettuce mangoes melons muffins mushrooms mustard noodles
            nuts oats olives omelettes onions oranges pancakes parsley pasta peaches pears peas
            peppers pickles pies pizza plums popcorn porridge potatoes pretzels pumpkin radishes
            raisins rice salad salmon sausages scones shrimp soup spinach stew tofu tomatoes trout
            tuna turnips waffles walnuts yogurt""",
        "hobby": """archery astronomy badminton baking birdwatching bowling boxing calligraphy
            camping canoeing ceramics chess climbing cooking cricket cycling dancing darts diving
            drawing embroidery fencing fishing football gardening golf gymnastics hiking hockey
            juggling karate kayaking knitting magic marathons origami painting photography pottery
            puzzles quilting reading rowing rugby running sailing sculpture sewing singing skating
            skiing snooker surfing swimming tennis trampolining volleyball walking whittling
            woodwork wrestling writing yoga""",
        "material": """acrylic aluminium bamboo brass brick bronze canvas cardboard cedar ceramic
            chrome clay concrete copper cork cotton crystal denim felt flannel foam fleece glass
            granite gravel hemp iron ivory jute lace leather linen maple marble mesh nylon oak
            paper pewter pine plaster plastic polyester porcelain rubber satin silk slate steel
            stone straw suede teak tile tin titanium tweed velvet vinyl walnut wax wicker wool
            zinc""",
        "object": """axe bag basket bell belt blanket book bottle bowl box broom brush bucket
            cabinet candle carpet chair clock cloak coat comb crate cup curtain cushion desk dish
            door drum fan flag flask fork frame glove hammer hat helmet jacket jar jug kettle kite
            knife ladder lamp lantern lock mirror mug needle net oven paddle pan pen pencil pillow
            pipe plate pot purse rake ring robe rope rug saddle saw scarf shelf shield shirt shoe
            shovel sofa spade spoon stool table tent towel tray vase wagon wallet whistle wheel""",
        "weather": """blustery breezy bright chilly clear cloudy cold cool damp drizzly dry dull
            dusty foggy freezing frosty gloomy grey gusty hazy hot humid icy mild misty muggy
            overcast rainy scorching showery sleety snowy stormy sultry sunny sweltering thundery
            unsettled warm wet windy wintry""",
        "quality": """active bold brave bright calm careful caring cheerful clever curious daring
            diligent eager earnest faithful fair friendly funny generous gentle graceful honest
            humble jolly keen kind lively loyal merry modest neat noble patient playful polite
            proud quick quiet reliable rugged serious sharp shy sincere sleek smart solid steady
            strict strong sturdy swift tender thoughtful thrifty tidy tough trusty warm wise witty
            zealous""",
        "month": """January February March April May June July August September October November
            December""",
        "instrument": """accordion bagpipes banjo bassoon bugle castanets cello clarinet cornet
            cymbals drums fiddle flute gong guitar harmonica harp harpsichord horn lute lyre
            mandolin maracas oboe organ piano piccolo recorder saxophone sitar tambourine timpani
            triangle trombone trumpet tuba ukulele viola violin xylophone zither""",
        "flower": """anemone aster azalea begonia bluebell buttercup camellia carnation clover
            cornflower crocus cyclamen daffodil dahlia daisy foxglove freesia fuchsia gardenia
            geranium gladiolus heather hibiscus hyacinth hydrangea iris jasmine larkspur lavender
            lilac lily lotus lupin magnolia marigold nasturtium orchid pansy peony petunia
            periwinkle poppy primrose rose snowdrop sunflower thistle tulip verbena violet
            wisteria zinnia""",
        "vehicle": """barge bicycle boat bus cab canoe caravan cart coach ferry glider helicopter
            kayak lorry moped motorbike raft rickshaw rocket scooter ship sledge submarine tandem
            taxi tractor train tram trolley truck van wagon yacht""",
    }.items()
}
